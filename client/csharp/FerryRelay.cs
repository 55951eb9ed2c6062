// The player's side of a Ferry relay, for any .NET: .NET Framework 4.6.1, .NET Core 2.0, .NET
// Standard 2.1, Mono 6 and later. It needs no package and knows nothing of a game engine.
//
// One thread, that of the game, calls everything but the calls of RelayApi; a session has no thread of
// its own. Nothing blocks but RelaySession.Bind and RelaySession.Connect, which have a time limit. A
// message that is sent or received allocates nothing.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
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

        /// <summary>Reserves an allocation for a player of the host with that code, as it is typed or pasted. Bind within 10 s.</summary>
        /// <param name="family">4 or 6: the address family that comes first, for a backend that of its player; 0: that of this call</param>
        public RelayTicket Join(string joinCode, int family = 0) {
            return TicketOf(Call<AllocateAnswer>("/v1/join", "{\"joinCode\":" + Quote(Trim(joinCode)) + ",\"family\":" + family + "}").data.allocation);
        }

        // What a chat or a keyboard puts into a code and no player sees as a part of it: spaces, hyphens and
        // characters without a width. The server says what is wrong with the rest.
        static string Trim(string code) {
            var b = new StringBuilder();
            foreach (var c in code) {
                var category = char.GetUnicodeCategory(c);
                if (!char.IsWhiteSpace(c) && c != '\u2212' && category != UnicodeCategory.SpaceSeparator
                    && category != UnicodeCategory.DashPunctuation && category != UnicodeCategory.Format) b.Append(c);
            }
            return b.ToString();
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
        /// <summary>The largest content of a RELAY that every relay and every path takes.</summary>
        public const int MaxContent = 1400;

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

        /// <summary>Writes a RELAY into a buffer, and returns its size.</summary>
        public static int PutRelay(byte[] m, byte[] from, byte[] to, byte[] content, int offset, int count) {
            m[0] = 0xDA; m[1] = 0x72; m[2] = 0; m[3] = Relay;
            Buffer.BlockCopy(from, 0, m, 4, 16); Buffer.BlockCopy(to, 0, m, 20, 16);
            m[36] = (byte)(count >> 8); m[37] = (byte)count; // big-endian
            Buffer.BlockCopy(content, offset, m, RelayOverhead, count);
            return RelayOverhead + count;
        }

        public static byte[] NewDisconnect(byte[] from, byte[] to) {
            var m = New(Disconnect, 36);
            Array.Copy(from, 0, m, 4, 16); Array.Copy(to, 0, m, 20, 16);
            return m;
        }

        public static byte[] NewClose(byte[] id) { var m = New(Close, 20); Array.Copy(id, 0, m, 4, 16); return m; }

        /// <summary>The type of a message that a relay sends, or -1 if it is none or has a wrong size.</summary>
        public static int TypeOf(byte[] m, int size) {
            if (size < 4 || m[0] != 0xDA || m[1] != 0x72 || m[2] != 0) return -1;
            switch (m[3]) {
                case BindReceived: return size == 4 ? m[3] : -1;
                case Ping: return size == 22 ? m[3] : -1;
                case Accepted: case Disconnect: return size == 36 ? m[3] : -1;
                case Rejected: return m[3];
                case Relay: return size >= RelayOverhead && size == RelayOverhead + (m[36] << 8 | m[37]) ? m[3] : -1;
                case Error: return size == 21 ? m[3] : -1;
            }
            return -1;
        }
    }

    /// <summary>What happened in a session.</summary>
    public struct RelayEvent {
        /// <summary>Refused: the link with Peer is lost; Connect of a player starts anew, and a player of this host may be
        /// back. Ended: the session has ended, and nothing follows.</summary>
        public enum Kind { Message, Joined, Left, Refused, Ended }
        /// <summary>Values of Error that are no codes of the relay: the host has all its players; no answer came in time.</summary>
        public const int HostIsFull = -1, NoAnswer = -2;
        public Kind What;
        /// <summary>The other side: its 16 bytes as a hexadecimal text. Null if Ended, and for a host with several
        /// players when a message met no link, since the relay does not say which.</summary>
        public string Peer;
        /// <summary>The content of a Message, in the session's buffer: valid until the next call of Poll, Bind or Connect.</summary>
        public ArraySegment<byte> Content;
        /// <summary>Why, for Refused and Ended: the code of an ERROR, HostIsFull or NoAnswer.</summary>
        public int Error;

        /// <summary>Describes an Error.</summary>
        public static string Reason(int error) {
            switch (error) {
                case HostIsFull: return "the host is full";
                case NoAnswer: return "the relay does not answer";
                case 1: return "the allocation has ended after 10 s of silence (ERROR 1)";
                case 2: return "the ticket is not for this player (ERROR 2)";
                case 4: return "the allocation has ended or never was (ERROR 4)";
                case 5: return "there is no link with the peer (ERROR 5)";
                case 6: return "the ticket leads to the player itself (ERROR 6)";
            }
            return "ERROR " + error;
        }
    }

    /// <summary>The session or the link cannot go on.</summary>
    public sealed class RelayException : IOException {
        /// <summary>As in RelayEvent.</summary>
        public int Error { get; }
        public RelayException(int error) : base(RelayEvent.Reason(error)) { Error = error; }
    }

    /// <summary>A player's or host's session over UDP. Like UDP it may lose, repeat and reorder messages. It follows
    /// its player to another network, and binds again when the relay is silent.</summary>
    public sealed class RelaySession : IDisposable {
        /// <summary>A session sends a PING so often; the relay ends an allocation after 10 s of silence.</summary>
        public const int KeepAliveMilliseconds = 1000;
        /// <summary>A message without an answer is repeated so often.</summary>
        public const int RetryMilliseconds = 250;
        /// <summary>So long a session binds again while the relay is silent, before it ends.</summary>
        public const int RebindMilliseconds = 60000;
        /// <summary>A link that the relay has dropped is asked for so often, and given up after so long.</summary>
        public const int RelinkMilliseconds = 1000, RelinkLimitMilliseconds = 5000;
        // After so many PINGs without an answer the session binds again, from another socket.
        const int SilentPings = 3;
        const int Disconnects = 4; // sent without the relay's echo
        const int DatagramsPerTurn = 2048;

        sealed class Peer {
            public string Name;
            public byte[] Id;
            public int Turn, Messages; // so many messages in that turn
            public int Disconnects;    // sent; 0: the link is open
            public long DisconnectAt;
        }

        // 16 bytes as a key that needs no allocation.
        struct Key : IEquatable<Key> {
            readonly ulong a, b;
            public Key(byte[] m, int offset) { a = BitConverter.ToUInt64(m, offset); b = BitConverter.ToUInt64(m, offset + 8); }
            public bool Equals(Key other) { return a == other.a && b == other.b; }
            public override int GetHashCode() { return (a ^ b).GetHashCode(); }
        }

        readonly RelayTicket ticket;
        readonly Key own;
        Socket socket;
        int server; // index of ticket.Servers
        readonly byte[] received = new byte[2048], sending = new byte[RelayMessage.RelayOverhead + RelayMessage.MaxContent];
        readonly Queue<RelayEvent> events = new Queue<RelayEvent>(); // no Message; at most a few for each peer
        readonly Dictionary<Key, Peer> byId = new Dictionary<Key, Peer>();
        readonly Dictionary<string, Peer> byName = new Dictionary<string, Peer>();
        readonly Stopwatch clock = Stopwatch.StartNew();

        // Binding: since bindSince, and the present socket has its turn until socketUntil.
        bool bound, binding;
        int nonce, turns;
        long bindSince, bindAt, bindSentAt = long.MinValue / 2, socketUntil, roamAt;
        bool roamNow; // The system refuses to send from the socket.
        ushort pings;
        int silentPings;
        long pingAt;

        // Connecting: the link of a player with its host is asked for, by Connect or again (relinking).
        Peer host;
        bool connecting, relinking;
        long connectSince, connectAt, connectSentAt;
        int connectError; // of the last Connect

        int ended; // why; 0: not yet
        int turn, datagrams, leaving;

        public RelaySession(RelayTicket ticket) {
            if (ticket.Id.Length != 16 || ticket.Key.Length != 64 || ticket.ConnectionData.Length > 255) throw new ArgumentException("the ticket has wrong sizes");
            this.ticket = ticket;
            own = new Key(ticket.Id, 0);
            var error = Open(0);
            if (error != null) throw error;
        }

        // Opens a socket to the first server, from an index on, to whose address family this machine has a way.
        // If there is none, the present socket remains.
        SocketException Open(int first) {
            SocketException error = null;
            for (var i = 0; i < ticket.Servers.Length; i++) {
                var to = ticket.Servers[(first + i) % ticket.Servers.Length];
                Socket s = null;
                try {
                    s = new Socket(to.AddressFamily, SocketType.Dgram, ProtocolType.Udp);
                    s.Connect(to);
                    s.Blocking = false;
                } catch (SocketException e) {
                    if (s != null) s.Dispose();
                    error = e;
                    continue;
                }
                if (socket != null) socket.Dispose();
                socket = s;
                server = (first + i) % ticket.Servers.Length;
                return null;
            }
            return error;
        }

        long Now { get { return clock.ElapsedMilliseconds; } }

        /// <summary>The peers that a message has come from, or that this session is connected to.</summary>
        public ICollection<string> Peers { get { return byName.Keys; } }

        /// <summary>Whether the relay has confirmed this session's address, and answers.</summary>
        public bool IsBound { get { return bound && !binding && ended == 0; } }

        /// <summary>Each peer may have so many messages in a turn of the game; more are dropped.</summary>
        public int MessagesPerTurn = 256;

        /// <summary>How many messages this session has dropped. The system drops more when its buffer is full, without telling.</summary>
        public long Dropped { get; private set; }

        /// <summary>Binds the allocation to this socket. TimeoutException: the relay does not answer. RelayException: it refuses.</summary>
        public void Bind(int withinMilliseconds = 10000) {
            if (!bound && !binding) StartBinding(Now);
            Wait(withinMilliseconds, () => !binding);
        }

        /// <summary>Connects a player with the host of its ticket, and returns the host. Bind first. TimeoutException: the
        /// relay does not answer. RelayException: it refuses. A link that the relay drops later is made again without a
        /// call; if that fails, Poll returns Refused, and Connect may be called again.</summary>
        public string Connect(int withinMilliseconds = 10000) {
            if (ticket.HostConnectionData == null) throw new InvalidOperationException("a host connects to nobody");
            if (!bound && ended == 0) throw new InvalidOperationException("bind first");
            if (!connecting && host == null) StartConnecting(Now);
            connectError = 0;
            try {
                Wait(withinMilliseconds, () => !connecting);
            } finally { if (!relinking) connecting = false; }
            if (host == null) throw new RelayException(connectError);
            return host.Name;
        }

        // Runs the session until it is done. Messages that come meanwhile are dropped.
        void Wait(int within, Func<bool> done) {
            for (var until = Now + within;;) {
                if (ended != 0) throw new RelayException(ended);
                if (done()) return;
                if (Now >= until) throw new TimeoutException("the relay at " + ticket.Servers[server] + " does not answer");
                Work();
                socket.Poll(10000, SelectMode.SelectRead);
                RelayEvent none;
                for (var n = 0; n < DatagramsPerTurn && Receive(false, out none) && !done(); n++) { }
            }
        }

        /// <summary>Moves the session to another socket, and so to the address that this machine has now. A session does so
        /// by itself when the relay is silent for three seconds, or the system refuses to send.</summary>
        public void Roam() { Reopen(Now, server); }

        void Reopen(long now, int first) {
            roamAt = now + RetryMilliseconds;
            Open(first); // Without a network the present socket remains, and the session ends if there is none for too long.
            if (bound || binding) StartBinding(now);
        }

        void StartBinding(long at) {
            if (!binding) { bindSince = Now; turns = 0; socketUntil = Now + TurnOf(0); }
            binding = true;
            bindAt = at;
        }

        // A second for each server, then two, then four: one is long enough for the round trip.
        int TurnOf(int turn) { return 1000 << Math.Min(turn / ticket.Servers.Length, 2); }

        void StartConnecting(long at) { connecting = true; connectSince = Now; connectAt = at; }

        /// <summary>Sends at most RelayMessage.MaxContent bytes to a peer. False: nothing was sent, since the session has
        /// ended, there is no link with the peer, or the system refuses.</summary>
        public bool Send(string peer, byte[] content) { return Send(peer, new ArraySegment<byte>(content)); }

        public bool Send(string peer, ArraySegment<byte> content) {
            if (content.Count > RelayMessage.MaxContent) throw new ArgumentException("a message has at most " + RelayMessage.MaxContent + " bytes");
            Peer p;
            if (ended != 0 || !byName.TryGetValue(peer, out p) || p.Disconnects > 0) return false;
            return Transmit(sending, RelayMessage.PutRelay(sending, ticket.Id, p.Id, content.Array, content.Offset, content.Count));
        }

        bool Transmit(byte[] m) { return Transmit(m, m.Length); }

        bool Transmit(byte[] m, int size) {
            SocketError error;
            socket.Send(m, 0, size, SocketFlags.None, out error);
            switch (error) {
                case SocketError.Success: return true;
                case SocketError.WouldBlock: case SocketError.NoBufferSpaceAvailable: // As if the network had lost it.
                case SocketError.ConnectionRefused: case SocketError.ConnectionReset: return false; // ICMP: the relay restarts.
            }
            roamNow = true; // The address or the network of this socket has gone.
            return false;
        }

        /// <summary>Ends the link with a peer, which is told that this side has left.</summary>
        public void Disconnect(string peer) {
            Peer p;
            if (ended != 0 || !byName.TryGetValue(peer, out p) || p.Disconnects > 0) return;
            byName.Remove(peer);
            if (p == host) { host = null; connecting = relinking = false; }
            leaving++;
            SendDisconnect(p, Now);
        }

        // DISCONNECT is repeated until the relay has sent it back.
        void SendDisconnect(Peer p, long now) {
            p.Disconnects++;
            p.DisconnectAt = now + RetryMilliseconds;
            Transmit(RelayMessage.NewDisconnect(ticket.Id, p.Id));
        }

        /// <summary>Returns the next event. Call it in each turn of the game until it returns false, which it does after a
        /// bounded number of messages; it keeps the session alive.</summary>
        public bool Poll(out RelayEvent e) {
            Work();
            for (;;) {
                if (events.Count > 0) { e = events.Dequeue(); return true; }
                if (datagrams++ >= DatagramsPerTurn || !Receive(true, out e)) break;
                if (e.Peer != null) return true;
            }
            e = default(RelayEvent);
            turn++;
            datagrams = 0;
            return false;
        }

        // Sends what is due.
        void Work() {
            var now = Now;
            if (ended != 0) return;
            if (roamNow && now >= roamAt) { roamNow = false; Reopen(now, server); }
            if (binding) WorkBinding(now);
            if (ended != 0 || !bound || binding) return;
            if (now >= pingAt) {
                if (silentPings >= SilentPings) { silentPings = 0; Reopen(now, server); return; }
                silentPings++;
                pingAt = now + KeepAliveMilliseconds;
                Transmit(RelayMessage.NewPing(ticket.Id, ++pings));
            }
            if (leaving > 0) WorkLeaving(now);
            if (connecting) WorkConnecting(now);
        }

        void WorkBinding(long now) {
            if (bound && now - bindSince >= RebindMilliseconds || nonce > ushort.MaxValue) { End(RelayEvent.NoAnswer); return; }
            if (now >= socketUntil) {
                Reopen(now, server + 1);
                socketUntil = now + TurnOf(++turns);
            }
            if (now < bindAt) return;
            bindAt = now + RetryMilliseconds;
            bindSentAt = now;
            Transmit(RelayMessage.NewBind(ticket.ConnectionData, (ushort)nonce++, ticket.Key));
        }

        void WorkConnecting(long now) {
            if (relinking && now - connectSince >= RelinkLimitMilliseconds) { EndConnecting(RelayEvent.NoAnswer); return; }
            if (now < connectAt || leaving > 0) return; // A DISCONNECT that is repeated would end the new link.
            connectAt = now + (relinking ? RelinkMilliseconds : RetryMilliseconds);
            connectSentAt = now;
            Transmit(RelayMessage.NewConnectRequest(ticket.Id, ticket.HostConnectionData));
        }

        void WorkLeaving(long now) {
            Peer over = null;
            foreach (var p in byId.Values) {
                if (p.Disconnects == 0 || now < p.DisconnectAt) continue;
                if (p.Disconnects < Disconnects) SendDisconnect(p, now); else over = p;
            }
            if (over != null) Forget(over);
        }

        // Takes a datagram; false: there is none. A message becomes e if it is wanted, and is counted as dropped if not.
        bool Receive(bool wanted, out RelayEvent e) {
            e = default(RelayEvent);
            SocketError error;
            var size = socket.Receive(received, 0, received.Length, SocketFlags.None, out error);
            if (error != SocketError.Success) return error == SocketError.MessageSize; // Others: none, or ICMP while the relay restarts.
            var m = received;
            var type = RelayMessage.TypeOf(m, size);
            if (ended != 0 || type < 0) return true;
            silentPings = 0;
            switch (type) {
                case RelayMessage.BindReceived:
                    if (!binding) break;
                    binding = false;
                    bound = true;
                    pingAt = Now + KeepAliveMilliseconds;
                    if (relinking) connectSince = Now; // The relay's silence said nothing about the link.
                    break;
                case RelayMessage.Accepted:
                    if (!connecting || leaving > 0 || !new Key(m, 20).Equals(own)) break;
                    connecting = relinking = false;
                    host = Meet(m);
                    break;
                case RelayMessage.Rejected: EndConnecting(RelayEvent.HostIsFull); break;
                case RelayMessage.Disconnect: HandleDisconnect(m); break;
                case RelayMessage.Relay: HandleRelay(m, size, wanted, ref e); break;
                case RelayMessage.Error:
                    if (m[20] == 0 || new Key(m, 4).Equals(own)) HandleError(m[20]);
                    break;
            }
            return true;
        }

        void HandleRelay(byte[] m, int size, bool wanted, ref RelayEvent e) {
            if (!new Key(m, 20).Equals(own)) return;
            if (!wanted) { Dropped++; return; }
            var p = Meet(m);
            if (p.Disconnects > 0) return;
            if (p.Turn != turn) { p.Turn = turn; p.Messages = 0; }
            if (++p.Messages > MessagesPerTurn) { Dropped++; return; }
            e = new RelayEvent { What = RelayEvent.Kind.Message, Peer = p.Name, Content = new ArraySegment<byte>(m, RelayMessage.RelayOverhead, size - RelayMessage.RelayOverhead) };
            if (events.Count == 0) return;
            e.Content = new ArraySegment<byte>(Copy(e.Content)); // It waits behind the Joined of its peer.
            events.Enqueue(e);
            e = events.Dequeue();
        }

        static byte[] Copy(ArraySegment<byte> content) {
            var copy = new byte[content.Count];
            Buffer.BlockCopy(content.Array, content.Offset, copy, 0, copy.Length);
            return copy;
        }

        void HandleDisconnect(byte[] m) {
            Peer p;
            var echo = new Key(m, 4).Equals(own);
            if (!byId.TryGetValue(new Key(m, echo ? 20 : 4), out p) || echo && p.Disconnects == 0) return;
            if (p.Disconnects == 0) events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Left, Peer = p.Name });
            Forget(p);
        }

        void HandleError(int code) {
            var now = Now;
            switch (code) {
                case 1: End(code); break;
                case 4: // Of the host, if it answers a CONNECT_REQUEST.
                    if (connecting && connectSentAt >= connectSince && (!binding || bindSentAt < connectSentAt)) EndConnecting(code); else End(code);
                    break;
                case 2: case 6:
                    if (connecting) EndConnecting(code);
                    break;
                case 3:
                    // The relay does not know this address, as after a restart or behind another address of a
                    // NAT. A BIND with a higher nonce says that it is the same player.
                    if (bound && !binding) StartBinding(Math.Max(now, bindSentAt + RetryMilliseconds));
                    break;
                case 5:
                    if (ticket.HostConnectionData == null) { Refuse(byName.Count == 1 ? Only() : null, code); break; }
                    if (host == null || connecting) break;
                    relinking = true;
                    StartConnecting(Math.Max(now, connectSentAt + RelinkMilliseconds));
                    break;
            }
        }

        string Only() { foreach (var name in byName.Keys) return name; return null; }

        void EndConnecting(int error) {
            if (!connecting) return;
            connecting = relinking = false;
            connectError = error;
            if (host == null) return; // Connect tells.
            Refuse(host.Name, error);
            Forget(host);
        }

        void End(int error) {
            ended = error;
            binding = connecting = relinking = false;
            events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Ended, Error = error });
        }

        void Refuse(string peer, int error) { events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Refused, Peer = peer, Error = error }); }

        // The peer that a message comes from.
        Peer Meet(byte[] m) {
            Peer p;
            var key = new Key(m, 4);
            if (byId.TryGetValue(key, out p)) return p;
            var id = new byte[16];
            Buffer.BlockCopy(m, 4, id, 0, 16);
            p = new Peer { Id = id, Name = BitConverter.ToString(id).Replace("-", "").ToLowerInvariant(), Turn = -1 };
            byId[key] = byName[p.Name] = p;
            events.Enqueue(new RelayEvent { What = RelayEvent.Kind.Joined, Peer = p.Name });
            return p;
        }

        void Forget(Peer p) {
            byId.Remove(new Key(p.Id, 0));
            byName.Remove(p.Name);
            if (p.Disconnects > 0) leaving--;
            if (p == host) { host = null; connecting = relinking = false; }
        }

        /// <summary>Leaves the match: the allocation ends.</summary>
        public void Dispose() {
            if (ended == 0) {
                foreach (var p in byId.Values) Transmit(RelayMessage.NewDisconnect(ticket.Id, p.Id));
                Transmit(RelayMessage.NewClose(ticket.Id));
            }
            socket.Dispose();
        }
    }
}
