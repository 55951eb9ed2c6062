// The declarations of Unity that the samples use, as docs/unity.md names them, so that the samples are compiled without
// Unity. They are written from that page, and hold nothing of Unity's code. Behind them is a session of Ferry that
// behaves as real-clients describe Unity's transport, so that Game.cs plays the sample.

using System;
using System.Collections.Generic;

namespace UnityEngine {
    public class MonoBehaviour { public T GetComponent<T>() where T : new() { return Shared<T>.It; } static class Shared<T> where T : new() { public static readonly T It = new T(); } }
    public static class Debug {
        public static void Log(object text) { Console.WriteLine(text); }
        public static void LogError(object text) { Console.WriteLine("error: " + text); }
    }
    public static class Time { static readonly System.Diagnostics.Stopwatch clock = System.Diagnostics.Stopwatch.StartNew(); public static float realtimeSinceStartup { get { return (float)clock.Elapsed.TotalSeconds; } } }
}

namespace Unity.Networking.Transport.Relay {
    public struct RelayServerData {
        internal Ferry.RelayTicket Ticket;
        public RelayServerData(string host, ushort port, byte[] allocationId, byte[] connectionData, byte[] hostConnectionData, byte[] key, bool isSecure, bool isWebSocket) {
            Ticket = new Ferry.RelayTicket {
                Id = allocationId, ConnectionData = connectionData, Key = key,
                HostConnectionData = ReferenceEquals(connectionData, hostConnectionData) ? null : hostConnectionData,
                Servers = new[] { new System.Net.IPEndPoint(System.Net.IPAddress.Parse(host), port) },
            };
        }
    }
}

namespace Unity.Netcode.Transports.UTP {
    public class UnityTransport {
        internal Relay.RelayServerDataHolder Data = new Relay.RelayServerDataHolder();
        public bool UseWebSockets;
        public void SetRelayServerData(Unity.Networking.Transport.Relay.RelayServerData data) { Data.Ticket = data.Ticket; }
    }
    namespace Relay { class RelayServerDataHolder { public Ferry.RelayTicket Ticket; } }
}

namespace Unity.Netcode {
    /// <summary>A host that shuts down tells its players by a message of its netcode, and sends the relay neither
    /// DISCONNECT nor CLOSE. A player that gets it sends DISCONNECT for its host by itself.</summary>
    public class NetworkManager : UnityEngine.MonoBehaviour {
        public static readonly NetworkManager Singleton = new NetworkManager();
        public event Action<ulong> OnClientDisconnectCallback;
        public event Action OnTransportFailure;

        const int TimeoutMilliseconds = 5000; // Unity's is 30 s by default.
        static readonly List<Ferry.RelaySession> abandoned = new List<Ferry.RelaySession>(); // Their sockets stay open.
        static readonly byte[] bye = { 1 }, hello = { 0 };
        Ferry.RelaySession session;
        bool host;
        internal readonly HashSet<string> Players = new HashSet<string>();
        internal long HellosBack;
        int helloAt, heardAt;
        string to;

        public bool StartHost() { return StartSession(true); }
        public bool StartClient() { return StartSession(false); }

        bool StartSession(bool asHost) {
            if (session != null) throw new InvalidOperationException("it runs");
            session = new Ferry.RelaySession(GetComponent<Transports.UTP.UnityTransport>().Data.Ticket);
            host = asHost;
            to = null;
            HellosBack = 0;
            heardAt = Environment.TickCount;
            Players.Clear();
            try {
                session.Bind(60000);
                if (!host) to = session.Connect(60000);
            } catch (Ferry.RelayException e) {
                Console.WriteLine("failed " + e.Error);
                Abandon();
                if (OnTransportFailure != null) OnTransportFailure();
                return false;
            }
            Console.WriteLine(host ? "host" : "client");
            return true;
        }

        void Abandon() { abandoned.Add(session); session = null; }

        public void Shutdown() {
            if (session == null) return;
            if (host) foreach (var p in Players) for (var i = 0; i < 3; i++) session.Send(p, bye);
            Abandon();
        }

        internal void Frame() {
            if (session == null) return;
            var now = Environment.TickCount;
            if (to != null && now - helloAt >= 50) { helloAt = now; session.Send(to, hello); }
            for (Ferry.RelayEvent e; session != null && session.Poll(out e);)
                switch (e.What) {
                    case Ferry.RelayEvent.Kind.Message:
                        heardAt = now;
                        if (host) { Players.Add(e.Peer); session.Send(e.Peer, hello); break; }
                        if (e.Content.Array[e.Content.Offset] == 0) { if (HellosBack++ == 0) Console.WriteLine("plays"); break; }
                        session.Disconnect(e.Peer);
                        End();
                        break;
                    case Ferry.RelayEvent.Kind.Left: Players.Remove(e.Peer); if (!host) End(); else OnClientDisconnectCallback(1); break;
                    case Ferry.RelayEvent.Kind.Refused: if (!host) End(); break;
                    case Ferry.RelayEvent.Kind.Ended: Console.WriteLine("ended " + e.Error); Abandon(); OnTransportFailure(); break;
                }
            if (to != null && session != null && now - heardAt > TimeoutMilliseconds) { session.Disconnect(to); End(); }
        }

        void End() {
            Abandon();
            OnClientDisconnectCallback(0);
        }
    }
}
