// A host that sends back what it gets, or a player that says hello once a second. Put it on an object of an empty
// scene; with an empty Code it is a host and logs its join code, with a code a player.

using System;
using System.Text;
using System.Threading.Tasks;
using Ferry;
using UnityEngine;

public class FerryEcho : MonoBehaviour {
    public string Url = "http://127.0.0.1:7777"; // ferry dev
    public string Token, Code;

    RelaySession session;
    string host; // null for a host
    float next;
    bool destroyed;

    async void Start() {
        try {
            var api = new RelayApi(Url, string.IsNullOrEmpty(Token) ? null : Token);
            var asHost = string.IsNullOrEmpty(Code);
            string code = Code, to = null;
            // These calls block, so the thread pool makes them. The session is this component's from then on.
            var opened = await Task.Run(() => {
                var ticket = asHost ? api.Allocate(4) : api.Join(code);
                var s = new RelaySession(ticket);
                try {
                    s.Bind();
                    if (asHost) code = api.JoinCode(ticket.AllocationId); else to = s.Connect();
                } catch {
                    s.Dispose();
                    throw;
                }
                return s;
            });
            if (destroyed) { opened.Dispose(); return; }
            session = opened;
            host = to;
            Debug.Log(asHost ? "join code " + code : "connected");
        } catch (Exception e) {
            Debug.LogError(e.Message);
        }
    }

    void Update() {
        if (session == null) return;
        if (host != null && Time.realtimeSinceStartup >= next) {
            next = Time.realtimeSinceStartup + 1;
            session.Send(host, Encoding.UTF8.GetBytes("hello"));
        }
        for (RelayEvent e; session.Poll(out e);)
            switch (e.What) {
                case RelayEvent.Kind.Message:
                    if (host == null) session.Send(e.Peer, e.Content);
                    else Debug.Log("back: " + Encoding.UTF8.GetString(e.Content.Array, e.Content.Offset, e.Content.Count));
                    break;
                case RelayEvent.Kind.Refused: case RelayEvent.Kind.Ended: Debug.LogError(RelayEvent.Reason(e.Error)); break;
                default: Debug.Log(e.What + " " + e.Peer); break;
            }
    }

    void OnDestroy() {
        destroyed = true;
        if (session != null) session.Dispose();
        session = null;
    }
}
