// A match of Netcode for GameObjects over UnityTransport that goes on when its host leaves or crashes. Put it beside the
// NetworkManager; it outlives the match. The game calls HostMatch or JoinMatch, and LeaveMatch in place of Shutdown. What the
// game's state is then, is the game's matter: the new host has what it had received.

using System;
using System.Linq;
using System.Threading.Tasks;
using Ferry;
using Unity.Netcode;
using Unity.Netcode.Transports.UTP;
using Unity.Networking.Transport.Relay;
using UnityEngine;

public class FerryMatch : MonoBehaviour, IMigratingTransport {
    public string Url = "http://127.0.0.1:7777"; // ferry dev
    public string Token;
    public string Transport = "dtls"; // or udp, ws, wss: an endpoint of the relay

    /// <summary>The match is over, and why.</summary>
    public event Action<string> Over;

    RelayApi api;
    FerryHostMigration migration;

    void Start() {
        api = new RelayApi(Url, string.IsNullOrEmpty(Token) ? null : Token);
        migration = new FerryHostMigration(api, this);
        migration.Over += reason => { if (Over != null) Over(reason); };
        NetworkManager.Singleton.OnClientDisconnectCallback += OnClientDisconnect;
        NetworkManager.Singleton.OnTransportFailure += migration.Lost;
    }

    void Update() { migration.Update(); }

    /// <summary>Returns the join code.</summary>
    public async Task<string> HostMatch(int players) {
        var ticket = await Task.Run(() => api.Allocate(players));
        StartTransport(ticket); // It binds in the next frames, before anybody has the code.
        var code = await Task.Run(() => api.JoinCode(ticket.AllocationId));
        migration.BeginAsHost(code, ticket.AllocationId, ticket.ConnectionData);
        return code;
    }

    public async Task JoinMatch(string code) {
        var ticket = await Task.Run(() => api.Join(code));
        migration.BeginAsPlayer(code, ticket.HostConnectionData);
        StartTransport(ticket);
    }

    public void LeaveMatch() { migration.Leave(); }

    void OnApplicationQuit() { migration.Leave(); }

    // A host gets this call for each player that leaves.
    void OnClientDisconnect(ulong client) { if (!migration.IsHost) migration.Lost(); }

    public void StopTransport() { NetworkManager.Singleton.Shutdown(); }

    public void StartTransport(RelayTicket ticket) {
        var endpoint = ticket.Endpoints.First(e => e.ConnectionType == Transport);
        bool secure = Transport == "dtls" || Transport == "wss", web = Transport == "ws" || Transport == "wss";
        var host = ticket.HostConnectionData == null;
        var transport = NetworkManager.Singleton.GetComponent<UnityTransport>();
        transport.UseWebSockets = web;
        transport.SetRelayServerData(new RelayServerData(endpoint.Host, (ushort)endpoint.Port, ticket.Id,
            ticket.ConnectionData, host ? ticket.ConnectionData : ticket.HostConnectionData, ticket.Key, secure, web));
        if (host) NetworkManager.Singleton.StartHost(); else NetworkManager.Singleton.StartClient();
    }
}
