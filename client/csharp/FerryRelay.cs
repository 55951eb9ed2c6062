// The player's side of a Ferry relay, for any .NET: .NET Framework 4.6.1, .NET Core 2.0, Mono
// 6 and later. It needs no package and knows nothing of a game engine.
//
// One thread, that of the game, calls everything but the calls of RelayApi. Nothing blocks
// but RelaySession.Bind and RelaySession.Connect, which have a time limit.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Runtime.Serialization;
using System.Runtime.Serialization.Json;
using System.Security.Cryptography;
using System.Text;

namespace Ferry {
    /// <summary>A refused call of the Allocations API.</summary>
    public sealed class RelayApiException : Exception {
        /// <summary>The status of HTTP, 0 if there was no answer.</summary>
        public int Status { get; }
        /// <summary>The code of the problem, such as 15009: there is no such join code. 0: none.</summary>
        public int Code { get; }
        public RelayApiException(int status, int code, string text, Exception inner) : base(text, inner) { Status = status; Code = code; }
    }

    /// <summary>What a host or a player gets from the API, and a session needs.</summary>
    public sealed class RelayTicket {
        public string AllocationId;
        /// <summary>16 bytes, as in messages.</summary>
        public byte[] Id;
        /// <summary>64 bytes, with which BINDs are signed.</summary>
        public byte[] Key;
        /// <summary>At most 255 bytes.</summary>
        public byte[] ConnectionData;
        /// <summary>Those of the host; null in the ticket of a host.</summary>
        public byte[] HostConnectionData;
        /// <summary>The relay's addresses for plain UDP. A session tries them in turn.</summary>
        public IPEndPoint[] Servers;
    }

    /// <summary>The Allocations API. Its methods may be called by any thread, and block.</summary>
    public sealed class RelayApi {
        readonly string url, token;
        /// <summary>For each call, in milliseconds.</summary>
        public int TimeoutMilliseconds = 10000;

        /// <param name="url">such as https://relay.example.org:7777</param>
        /// <param name="token">the bearer token; null for a relay of a developer (ferry dev)</param>
        public RelayApi(string url, string token) { this.url = url.TrimEnd('/'); this.token = token; }

        /// <summary>Reserves an allocation for a host and at most so many players.</summary>
        /// <param name="region">one of the relay's regions; null: the server chooses</param>
        /// <param name="family">4 or 6: the address family that comes first; 0: 4</param>
        public RelayTicket Allocate(int maxConnections, string region = null, int family = 0) {
            var answer = Call<AllocateAnswer>("/v1/allocate", "{\"maxConnections\":" + maxConnections + (region == null ? "" : ",\"region\":" + Quote(region)) + ",\"family\":" + family + "}");
            return TicketOf(answer.data.allocation);
        }

        /// <summary>Returns the join code of the caller's host. Bind first, then give it away.</summary>
        public string JoinCode(string allocationId) {
            return Call<CodeAnswer>("/v1/joincode", "{\"allocationId\":" + Quote(allocationId) + "}").data.joinCode;
        }

        /// <summary>Reserves an allocation for a player of the host with that code. Bind within 10 s.</summary>
        /// <param name="family">4 or 6: the address family that comes first, for a backend that of its player; 0: that of this call</param>
        public RelayTicket Join(string joinCode, int family = 0) {
            return TicketOf(Call<AllocateAnswer>("/v1/join", "{\"joinCode\":" + Quote(joinCode) + ",\"family\":" + family + "}").data.allocation);
        }

        T Call<T>(string path, string body) {
            var request = (HttpWebRequest)WebRequest.Create(url + path);
            request.Method = "POST";
            request.ContentType = "application/json";
            request.Timeout = request.ReadWriteTimeout = TimeoutMilliseconds;
            request.AllowAutoRedirect = false; // The token must not go anywhere else.
            if (token != null) request.Headers["Authorization"] = "Bearer " + token;
            try {
                var content = Encoding.UTF8.GetBytes(body);
                using (var stream = request.GetRequestStream()) stream.Write(content, 0, content.Length);
                using (var response = request.GetResponse())
                using (var stream = response.GetResponseStream()) return Read<T>(stream);
            } catch (WebException e) {
                var response = e.Response as HttpWebResponse;
                if (response == null) throw new RelayApiException(0, 0, e.Message, e);
                var problem = new Problem();
                using (var stream = response.GetResponseStream())
                    try { problem = Read<Problem>(stream) ?? problem; } catch (SerializationException) { } // of a proxy
                throw new RelayApiException((int)response.StatusCode, problem.code, problem.detail ?? response.StatusDescription, e);
            }
        }

        static T Read<T>(Stream stream) {
            var text = new MemoryStream();
            stream.CopyTo(text);
            text.Position = 0;
            return (T)new DataContractJsonSerializer(typeof(T)).ReadObject(text);
        }

        static string Quote(string text) {
            var b = new StringBuilder("\"");
            foreach (var c in text)
                if (c < ' ' || c == '"' || c == '\\' || c > '~') b.AppendFormat("\\u{0:x4}", (int)c); else b.Append(c);
            return b.Append('"').ToString();
        }

        static RelayTicket TicketOf(Allocation a) {
            if (a == null) throw new RelayApiException(0, 0, "the answer has no allocation", null);
            var servers = new List<IPEndPoint>();
            foreach (var e in a.serverEndpoints ?? new Endpoint[0])
                if (e.connectionType == "udp") servers.Add(new IPEndPoint(IPAddress.Parse(e.host), e.port));
            if (servers.Count == 0) throw new RelayApiException(0, 0, "the relay has no address for UDP", null);
            return new RelayTicket {
                AllocationId = a.allocationId, Id = Convert.FromBase64String(a.allocationIdBytes), Key = Convert.FromBase64String(a.key),
                ConnectionData = Convert.FromBase64String(a.connectionData),
                HostConnectionData = a.hostConnectionData == null ? null : Convert.FromBase64String(a.hostConnectionData),
                Servers = servers.ToArray(),
            };
        }

#pragma warning disable 0649 // The serializer sets these fields.
        [DataContract] sealed class AllocateAnswer { [DataMember] public AllocationData data; }
        [DataContract] sealed class AllocationData { [DataMember] public Allocation allocation; }
        [DataContract] sealed class Allocation { [DataMember] public string allocationId, allocationIdBytes, key, connectionData, hostConnectionData; [DataMember] public Endpoint[] serverEndpoints; }
        [DataContract] sealed class Endpoint { [DataMember] public string connectionType, host; [DataMember] public int port; }
        [DataContract] sealed class CodeAnswer { [DataMember] public CodeData data; }
        [DataContract] sealed class CodeData { [DataMember] public string joinCode; }
        [DataContract] sealed class Problem { [DataMember] public int code; [DataMember] public string detail; }
#pragma warning restore 0649
    }

    /// <summary>The messages of the relay: 4 bytes DA 72, version 0 and type, and then what the type says.</summary>
    public static class RelayMessage {
        public const byte Bind = 0, BindReceived = 1, Ping = 2, ConnectRequest = 3, Accepted = 6, Rejected = 8, Disconnect = 9, Relay = 10, Close = 11, Error = 12;
        /// <summary>The bytes of a RELAY before its content.</summary>
        public const int RelayOverhead = 38;

        static byte[] New(byte type, int size) { var m = new byte[size]; m[0] = 0xDA; m[1] = 0x72; m[3] = type; return m; }

        /// <summary>295 bytes: accept mode, nonce (little-endian), connection data of 255 bytes, HMAC-SHA256.</summary>
        public static byte[] NewBind(byte[] connectionData, ushort nonce, byte[] key) {
            var m = New(Bind, 295);
            m[5] = (byte)nonce; m[6] = (byte)(nonce >> 8); m[7] = 255;
            Array.Copy(connectionData, 0, m, 8, connectionData.Length);
            using (var mac = new HMACSHA256(key)) Array.Copy(mac.ComputeHash(m, 0, 263), 0, m, 263, 32);
            return m;
        }

        public static byte[] NewPing(byte[] id, ushort number) {
            var m = New(Ping, 22);
            Array.Copy(id, 0, m, 4, 16);
            m[20] = (byte)number; m[21] = (byte)(number >> 8);
            return m;
        }

        public static byte[] NewConnectRequest(byte[] id, byte[] hostConnectionData) {
            var m = New(ConnectRequest, 276);
            Array.Copy(id, 0, m, 4, 16);
            m[20] = 255;
            Array.Copy(hostConnectionData, 0, m, 21, hostConnectionData.Length);
            return m;
        }

        public static byte[] NewRelay(byte[] from, byte[] to, byte[] content, int offset, int count) {
            var m = New(Relay, RelayOverhead + count);
            Array.Copy(from, 0, m, 4, 16); Array.Copy(to, 0, m, 20, 16);
            m[36] = (byte)(count >> 8); m[37] = (byte)count; // big-endian
            Array.Copy(content, offset, m, RelayOverhead, count);
            return m;
        }

        public static byte[] NewDisconnect(byte[] from, byte[] to) {
            var m = New(Disconnect, 36);
            Array.Copy(from, 0, m, 4, 16); Array.Copy(to, 0, m, 20, 16);
            return m;
        }

        public static byte[] NewClose(byte[] id) { var m = New(Close, 20); Array.Copy(id, 0, m, 4, 16); return m; }

        /// <summary>The type of a message that a relay sends, or -1 if it is none or has a wrong size.</summary>
        public static int TypeOf(byte[] m) {
            if (m.Length < 4 || m[0] != 0xDA || m[1] != 0x72 || m[2] != 0) return -1;
            switch (m[3]) {
                case BindReceived: return m.Length == 4 ? m[3] : -1;
                case Ping: return m.Length == 22 ? m[3] : -1;
                case Accepted: case Disconnect: return m.Length == 36 ? m[3] : -1;
                case Rejected: return m[3];
                case Relay: return m.Length >= RelayOverhead && m.Length == RelayOverhead + (m[36] << 8 | m[37]) ? m[3] : -1;
                case Error: return m.Length == 21 ? m[3] : -1;
            }
            return -1;
        }

        public static byte[] Part(byte[] m, int offset, int count) { var part = new byte[count]; Array.Copy(m, offset, part, 0, count); return part; }
    }

    /// <summary>What happened in a session.</summary>
    public struct RelayEvent {
        public enum Kind { Message, Joined, Left, Refused }
        public Kind What;
        /// <summary>The other side: its 16 bytes as a hexadecimal text.</summary>
        public string Peer;
        /// <summary>The content of a Message.</summary>
        public byte[] Content;
        /// <summary>The code of an ERROR, for Refused: 4 the allocation has ended, 5 no link with the peer.</summary>
        public int Error;
    }

    /// <summary>A player's or host's session over UDP. Like UDP it may lose, repeat and reorder messages.</summary>
    public sealed class RelaySession : IDisposable {
        /// <summary>A session that sends nothing sends a PING so often; the relay ends an allocation after 10 s of silence.</summary>
        public const int KeepAliveMilliseconds = 3000;
        /// <summary>A message without an answer is repeated so often.</summary>
        public const int RetryMilliseconds = 250;
        readonly RelayTicket ticket;
        Socket socket;
        int server; // index of ticket.Servers
        readonly byte[] buffer = new byte[2048];
        readonly Queue<RelayEvent> events = new Queue<RelayEvent>();
        readonly HashSet<string> peers = new HashSet<string>();
        readonly Stopwatch clock = Stopwatch.StartNew();
        long sentAt, rebindAt;
        ushort nonce;
        bool bound, accepted;
        int refused;

        public RelaySession(RelayTicket ticket) {
            if (ticket.Id.Length != 16 || ticket.Key.Length != 64 || ticket.ConnectionData.Length > 255) throw new ArgumentException("the ticket has wrong sizes");
            this.ticket = ticket;
            Open(0);
        }

        // Opens a socket to the first server, from an index on, to whose address family this machine has a way.
        void Open(int first) {
            if (socket != null) socket.Dispose();
            socket = null;
            for (var i = 0; socket == null; i++) {
                server = (first + i) % ticket.Servers.Length;
                var to = ticket.Servers[server];
                Socket s = null;
                try {
                    s = new Socket(to.AddressFamily, SocketType.Dgram, ProtocolType.Udp);
                    s.Connect(to);
                    s.Blocking = false;
                    socket = s;
                } catch (SocketException) {
                    if (s != null) s.Dispose();
                    if (i == ticket.Servers.Length - 1) throw;
                }
            }
        }

        /// <summary>The peers that a message has come from, or that this session is connected to.</summary>
        public ICollection<string> Peers { get { return peers; } }

        /// <summary>Binds the allocation to this socket. TimeoutException: the relay does not answer.</summary>
        public void Bind(int withinMilliseconds = 10000) {
            var until = clock.ElapsedMilliseconds + withinMilliseconds;
            for (var turn = 0;; turn++) {
                // A second for each server, then two, then four: one is long enough for the round trip.
                var left = (int)(until - clock.ElapsedMilliseconds);
                var last = ticket.Servers.Length == 1 || left <= 1000;
                try {
                    Repeat(last ? left : Math.Min(left, 1000 << Math.Min(turn / ticket.Servers.Length, 2)), SendBind, () => bound);
                    return;
                } catch (TimeoutException) { if (last) throw; }
                Open(server + 1);
            }
        }

        /// <summary>Connects a player with the host of its ticket, and returns the host. Bind first.</summary>
        public string Connect(int withinMilliseconds = 10000) {
            if (ticket.HostConnectionData == null) throw new InvalidOperationException("a host connects to nobody");
            refused = 0;
            Repeat(withinMilliseconds, () => SendRaw(RelayMessage.NewConnectRequest(ticket.Id, ticket.HostConnectionData)), () => accepted || refused != 0);
            if (!accepted) throw new IOException("the host is full, or has ended (" + refused + ")");
            foreach (var p in peers) return p;
            throw new InvalidOperationException();
        }

        void Repeat(int within, Action send, Func<bool> done) {
            var until = clock.ElapsedMilliseconds + within;
            while (clock.ElapsedMilliseconds < until) {
                send();
                for (var next = clock.ElapsedMilliseconds + RetryMilliseconds; clock.ElapsedMilliseconds < next && !done();)
                    if (socket.Poll(10000, SelectMode.SelectRead)) Receive();
                if (done()) return;
            }
            throw new TimeoutException("the relay at " + ticket.Servers[server] + " does not answer");
        }

        void SendBind() { SendRaw(RelayMessage.NewBind(ticket.ConnectionData, nonce++, ticket.Key)); }

        /// <summary>Sends to a peer. A message that the system refuses is lost.</summary>
        public void Send(string peer, byte[] content) { SendRaw(RelayMessage.NewRelay(ticket.Id, Bytes(peer), content, 0, content.Length)); }

        void SendRaw(byte[] message) {
            sentAt = clock.ElapsedMilliseconds;
            try { socket.Send(message); } catch (SocketException) { } // As if the network had lost it.
        }

        /// <summary>Returns the next event. Call it in each turn of the game until it returns false; it keeps the session alive.</summary>
        public bool Poll(out RelayEvent e) {
            Receive();
            if (clock.ElapsedMilliseconds - sentAt >= KeepAliveMilliseconds) SendRaw(RelayMessage.NewPing(ticket.Id, 1));
            e = default(RelayEvent);
            if (events.Count == 0) return false;
            e = events.Dequeue();
            return true;
        }

        void Receive() {
            for (var n = 0; n < 1000; n++) { // A flood must not hold the game.
                int size;
                try {
                    if (socket.Available == 0) return;
                    size = socket.Receive(buffer);
                } catch (SocketException) { return; } // ICMP: the relay restarts.
                Handle(RelayMessage.Part(buffer, 0, size));
            }
        }

        void Handle(byte[] m) {
            switch (RelayMessage.TypeOf(m)) {
                case RelayMessage.BindReceived: bound = true; break;
                case RelayMessage.Accepted: accepted = true; Meet(Text(m, 4)); break;
                case RelayMessage.Rejected: refused = -1; break;
                case RelayMessage.Disconnect:
                    if (peers.Remove(Text(m, 4))) events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Left, Peer = Text(m, 4) });
                    break;
                case RelayMessage.Relay:
                    if (Text(m, 20) != Text(ticket.Id, 0)) break;
                    Meet(Text(m, 4));
                    events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Message, Peer = Text(m, 4), Content = RelayMessage.Part(m, RelayMessage.RelayOverhead, m.Length - RelayMessage.RelayOverhead) });
                    break;
                case RelayMessage.Error: HandleError(m[20]); break;
            }
        }

        // ERROR 3: the relay does not know this address, as after a restart or behind another
        // address of a NAT. A BIND with a higher nonce says that it is the same player.
        void HandleError(int code) {
            if (code == 3 && bound) {
                if (clock.ElapsedMilliseconds >= rebindAt) SendBind();
                rebindAt = clock.ElapsedMilliseconds + RetryMilliseconds;
                return;
            }
            refused = code;
            events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Refused, Error = code });
        }

        void Meet(string peer) { if (peers.Add(peer)) events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Joined, Peer = peer }); }

        /// <summary>Leaves the match: the allocation ends.</summary>
        public void Dispose() {
            foreach (var p in peers) SendRaw(RelayMessage.NewDisconnect(ticket.Id, Bytes(p)));
            SendRaw(RelayMessage.NewClose(ticket.Id));
            socket.Dispose();
        }

        static string Text(byte[] m, int offset) { return BitConverter.ToString(m, offset, 16).Replace("-", "").ToLowerInvariant(); }

        static byte[] Bytes(string peer) {
            var id = new byte[16];
            for (var i = 0; i < 16; i++) id[i] = Convert.ToByte(peer.Substring(2 * i, 2), 16);
            return id;
        }
    }
}
