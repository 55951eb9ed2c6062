// The player's side of a Ferry relay, for any .NET: .NET Framework 4.6.1, .NET Core 2.0, .NET
// Standard 2.1, Unity 2021.2, Mono 6 and later. It needs no package and knows nothing of a game engine.
//
// One thread, that of the game, calls everything but the calls of RelayApi; a session has no thread of
// its own. Nothing blocks but RelaySession.Bind and RelaySession.Connect, which have a time limit. A
// message that is sent or received allocates nothing.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Security.Cryptography;
using System.Text;
using System.Threading;

namespace Ferry {
    /// <summary>A refused call of the Allocations API.</summary>
    public sealed class RelayApiException : Exception {
        /// <summary>The status of HTTP, 0 if there was no answer. 2xx: the answer cannot be used.</summary>
        public int Status { get; }
        /// <summary>The code of the problem, such as 15009: there is no such join code. 0: none.</summary>
        public int Code { get; }
        /// <summary>Until another attempt makes sense, as the server says. 0: it does not say.</summary>
        public int RetryAfterMilliseconds { get; }
        /// <summary>For Migrate: no player can go on with this match. Its host left too long ago, its join code is
        /// gone, or the server has no migrations.</summary>
        public bool MatchIsOver { get; internal set; }
        internal bool HasHost; // of a 409 of migrate: the match has a host
        public RelayApiException(int status, int code, string text, Exception inner, int retryAfterMilliseconds = 0) : base(text, inner) {
            Status = status; Code = code; RetryAfterMilliseconds = retryAfterMilliseconds;
        }
    }

    /// <summary>An address of the relay, for one transport.</summary>
    public struct RelayEndpoint {
        /// <summary>udp, dtls, ws, wss or wt.</summary>
        public string ConnectionType;
        /// <summary>An IP address, or a name.</summary>
        public string Host;
        public int Port;
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
        /// <summary>All addresses of the relay, for other transports.</summary>
        public RelayEndpoint[] Endpoints;
    }

    /// <summary>A place with relays.</summary>
    public struct RelayRegion {
        /// <summary>As RelayApi.Allocate takes it.</summary>
        public string Id;
        public string Description;
        /// <summary>The UDP address of a relay there, host:port, for RelayQuality.Measure. Null: the server names none.</summary>
        public string QosAddress;
    }

    /// <summary>The Allocations API. Its methods may be called by any thread, and block.</summary>
    public sealed class RelayApi {
        const int AllocationNotFound = 15008, JoinCodeNotFound = 15009, NotFound = 15404; // codes of problems
        const int MaxAnswer = 64 << 10;
        readonly string url, token;
        /// <summary>For each call, in milliseconds.</summary>
        public int TimeoutMilliseconds = 10000;

        /// <param name="url">such as https://relay.example.org:7777</param>
        /// <param name="token">the bearer token; null for a relay of a developer (ferry dev)</param>
        /// <exception cref="ArgumentException">url has another form</exception>
        public RelayApi(string url, string token) {
            Uri uri;
            if (!Uri.TryCreate(url, UriKind.Absolute, out uri) || (uri.Scheme != "http" && uri.Scheme != "https") || url.IndexOfAny(new[] { '@', '?', '#', '\\', ' ' }) >= 0)
                throw new ArgumentException("\"" + url + "\" is no address of a server, such as https://relay.example.org:7777", "url");
            this.url = url.TrimEnd('/');
            this.token = token;
        }

        /// <summary>Returns the regions that Allocate accepts.</summary>
        public RelayRegion[] Regions() {
            var answer = Json.Member(Json.Member(Call("GET", "/v1/regions", null), "data"), "regions") as List<object>;
            if (answer == null) throw BadAnswer("has no regions");
            return answer.Select(r => new RelayRegion { Id = Json.Text(r, "id"), Description = Json.Text(r, "description"), QosAddress = Json.Text(r, "qosAddress") }).ToArray();
        }

        /// <summary>Reserves an allocation for a host and at most so many players.</summary>
        /// <param name="region">one of Regions; null: the server chooses</param>
        /// <param name="family">4 or 6: the address family that comes first; 0: 4</param>
        public RelayTicket Allocate(int maxConnections, string region = null, int family = 0) {
            return TicketOf(Call("POST", "/v1/allocate", "{\"maxConnections\":" + maxConnections + (region == null ? "" : ",\"region\":" + Json.Quote(region)) + ",\"family\":" + family + "}"));
        }

        /// <summary>Returns the join code of the caller's host. Bind first, then give it away.</summary>
        public string JoinCode(string allocationId) {
            var code = Json.Text(Json.Member(Call("POST", "/v1/joincode", "{\"allocationId\":" + Json.Quote(allocationId) + "}"), "data"), "joinCode");
            if (code == null) throw BadAnswer("has no join code");
            return code;
        }

        /// <summary>Reserves an allocation for a player of the host with that code, as it is typed or pasted. Bind within 10 s.</summary>
        /// <param name="family">4 or 6: the address family that comes first, for a backend that of its player; 0: that of this call</param>
        public RelayTicket Join(string joinCode, int family = 0) {
            if (joinCode == null) throw new ArgumentNullException("joinCode");
            var ticket = TicketOf(Call("POST", "/v1/join", "{\"joinCode\":" + Json.Quote(Trim(joinCode)) + ",\"family\":" + family + "}"));
            if (ticket.HostConnectionData == null) throw BadAnswer("has no hostConnectionData");
            return ticket;
        }

        /// <summary>Says that the caller's host leaves, so that its players may take its place at once. Call it before the
        /// host ends its connections. The server must permit migrations (setting host_migration of Ferry).</summary>
        /// <param name="withinMilliseconds">the time limit of this call; 0: TimeoutMilliseconds</param>
        /// <param name="connectionData">that of the host's ticket, which a token that many players share needs</param>
        public void Leave(string allocationId, int withinMilliseconds = 0, byte[] connectionData = null) {
            var proof = connectionData == null ? "" : ",\"connectionData\":" + Json.Quote(Convert.ToBase64String(connectionData));
            Call("POST", "/v1/leave", "{\"allocationId\":" + Json.Quote(allocationId) + proof + "}", withinMilliseconds);
        }

        /// <summary>Goes on with a match whose host has left. All players of the match call it, within 10 s after their
        /// last message to the relay. It returns the ticket of the player's next session: that of a host, without
        /// HostConnectionData, or that of a player of the match's next host. Bind it at once, and dispose of the old
        /// session then. A host's ticket that is not bound within 2 s goes to the next player that asks; then Bind
        /// ends with error 4, and the player calls Migrate again, with the same arguments. While the relay still waits for
        /// the host, Migrate asks again: a host that crashed counts as one that has left after some seconds of silence.
        /// TimeoutException: the relay still waits. RelayApiException: see MatchIsOver; or the server refuses.</summary>
        /// <param name="hostConnectionData">that of the player's ticket</param>
        public RelayTicket Migrate(string joinCode, byte[] hostConnectionData, int withinMilliseconds = 60000) {
            RelayTicket next;
            int wait;
            for (var clock = Stopwatch.StartNew(); !TryMigrate(joinCode, hostConnectionData, out next, out wait);) {
                if (clock.ElapsedMilliseconds + wait > withinMilliseconds) throw new TimeoutException("the relay still waits for the host of this match");
                Thread.Sleep(wait);
            }
            return next;
        }

        /// <summary>Migrate without waiting: false if the player has to ask again after so many milliseconds.</summary>
        /// <param name="hostConnectionData">null for a player that does not want to be the host</param>
        public bool TryMigrate(string joinCode, byte[] hostConnectionData, out RelayTicket next, out int waitMilliseconds) {
            waitMilliseconds = 0;
            try {
                if (hostConnectionData != null) {
                    next = TicketOf(Call("POST", "/v1/migrate", "{\"joinCode\":" + Json.Quote(Trim(joinCode)) + ",\"hostConnectionData\":" + Json.Quote(Convert.ToBase64String(hostConnectionData)) + "}"));
                    next.HostConnectionData = null;
                    return true;
                }
            } catch (RelayApiException e) {
                next = null;
                if (e.Status == 409 && !e.HasHost || MayRepeat(e)) { waitMilliseconds = WaitAfter(e); return false; }
                e.MatchIsOver = e.Code == JoinCodeNotFound || e.Code == NotFound;
                if (e.MatchIsOver || e.Status != 409 && e.Code != AllocationNotFound) throw;
            }
            // The match has a host, or this player may not take the place.
            try {
                next = Join(joinCode);
                return true;
            } catch (RelayApiException e) {
                next = null;
                if (e.Status == 409 || MayRepeat(e)) { waitMilliseconds = WaitAfter(e); return false; }
                e.MatchIsOver = e.Code == JoinCodeNotFound;
                throw;
            }
        }

        // Whether the server cannot answer now.
        static bool MayRepeat(RelayApiException e) { return e.Status == 0 || e.Status == 429 || e.Status == 503; }

        // Another player may become the host, or the host may say that it leaves, at any moment. So a player that the
        // server lets wait for more than a second asks each second, and others four times a second, more or less.
        static readonly Random random = new Random();
        static int WaitAfter(RelayApiException e) {
            var wait = e.RetryAfterMilliseconds;
            if (!MayRepeat(e)) wait = wait > 1000 ? 1000 : 0;
            wait = Math.Max(wait, 250);
            lock (random) return wait * 3 / 4 + random.Next(wait / 2 + 1);
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

        object Call(string method, string path, string body, int within = 0) {
            var request = (HttpWebRequest)WebRequest.Create(url + path);
            request.Method = method;
            request.Timeout = request.ReadWriteTimeout = within > 0 ? within : TimeoutMilliseconds;
            request.AllowAutoRedirect = false; // The token must not go anywhere else.
            if (token != null) request.Headers["Authorization"] = "Bearer " + token;
            try {
                if (body != null) {
                    request.ContentType = "application/json";
                    var content = Encoding.UTF8.GetBytes(body);
                    using (var stream = request.GetRequestStream()) stream.Write(content, 0, content.Length);
                }
                using (var response = (HttpWebResponse)request.GetResponse()) {
                    var text = ReadAll(response);
                    if (response.StatusCode == HttpStatusCode.NoContent) return null;
                    try { return Json.Parse(text); } catch (FormatException e) { throw new RelayApiException((int)response.StatusCode, 0, "the answer is no JSON: " + e.Message, e); }
                }
            } catch (WebException e) {
                using (var response = e.Response as HttpWebResponse) {
                    if (response == null) throw new RelayApiException(0, 0, url + ": " + e.Message, e);
                    object problem = null;
                    try { problem = Json.Parse(ReadAll(response)); } catch (Exception) { } // of a proxy
                    int seconds;
                    if (!int.TryParse(response.Headers["Retry-After"], NumberStyles.None, CultureInfo.InvariantCulture, out seconds) || seconds > 24 * 60 * 60) seconds = 0;
                    var details = Json.Member(problem, "details") as List<object> ?? new List<object>();
                    var reason = Json.Text(problem, "detail") ?? response.StatusDescription;
                    foreach (var d in details) reason += "; " + Json.Text(d, "key") + ": " + Json.Text(d, "value");
                    throw new RelayApiException((int)response.StatusCode, Json.Number(problem, "code"), reason, e, seconds * 1000) {
                        HasHost = details.Any(d => Json.Text(d, "key") == "host"),
                    };
                }
            } catch (IOException e) {
                throw new RelayApiException(0, 0, url + ": " + e.Message, e);
            }
        }

        static string ReadAll(WebResponse response) {
            using (var stream = response.GetResponseStream()) {
                var text = new MemoryStream();
                var part = new byte[4096];
                for (int n; (n = stream.Read(part, 0, part.Length)) > 0;) {
                    text.Write(part, 0, n);
                    if (text.Length > MaxAnswer) throw BadAnswer("has more than " + MaxAnswer + " bytes");
                }
                return Encoding.UTF8.GetString(text.ToArray());
            }
        }

        static RelayApiException BadAnswer(string what) { return new RelayApiException(200, 0, "the answer " + what, null); }

        static RelayTicket TicketOf(object answer) {
            var a = Json.Member(Json.Member(answer, "data"), "allocation");
            if (a == null) throw BadAnswer("has no allocation");
            var ticket = new RelayTicket {
                AllocationId = Json.Text(a, "allocationId"), Id = Bytes(a, "allocationIdBytes"), Key = Bytes(a, "key"),
                ConnectionData = Bytes(a, "connectionData"), HostConnectionData = Bytes(a, "hostConnectionData"),
                Endpoints = ((Json.Member(a, "serverEndpoints") as List<object>) ?? new List<object>()).Select(e => new RelayEndpoint {
                    ConnectionType = Json.Text(e, "connectionType"), Host = Json.Text(e, "host"), Port = Json.Number(e, "port"),
                }).ToArray(),
            };
            if (ticket.AllocationId == null || ticket.Id == null || ticket.Key == null || ticket.ConnectionData == null) throw BadAnswer("has no whole allocation");
            var servers = new List<IPEndPoint>();
            foreach (var e in ticket.Endpoints) {
                IPAddress ip;
                if (e.ConnectionType == "udp" && e.Port > 0 && e.Port < 65536 && IPAddress.TryParse(e.Host, out ip)) servers.Add(new IPEndPoint(ip, e.Port));
            }
            ticket.Servers = servers.ToArray();
            return ticket;
        }

        static byte[] Bytes(object from, string name) {
            var text = Json.Text(from, name);
            try { return string.IsNullOrEmpty(text) ? null : Convert.FromBase64String(text); } catch (FormatException) { throw BadAnswer("has a " + name + " that is no base64"); }
        }
    }

    // JSON as dictionaries, lists, texts, numbers (double), booleans and null. Serializers use reflection, of which
    // Unity's builds remove what nothing seems to use.
    static class Json {
        public static object Member(object from, string name) {
            object value = null;
            var members = from as Dictionary<string, object>;
            if (members != null) members.TryGetValue(name, out value);
            return value;
        }

        public static string Text(object from, string name) { return Member(from, name) as string; }

        public static int Number(object from, string name) { var n = Member(from, name) as double?; return n >= int.MinValue && n <= int.MaxValue ? (int)n : 0; }

        public static string Quote(string text) {
            var b = new StringBuilder("\"");
            foreach (var c in text)
                if (c < ' ' || c == '"' || c == '\\' || c > '~') b.AppendFormat("\\u{0:x4}", (int)c); else b.Append(c);
            return b.Append('"').ToString();
        }

        /// <summary>FormatException: it is no JSON.</summary>
        public static object Parse(string text) {
            var at = 0;
            var value = Value(text, ref at, 0);
            if (Next(text, ref at) != '\0') throw Bad(at);
            return value;
        }

        static FormatException Bad(int at) { return new FormatException("unexpected character at " + at); }

        // The next character that is no space, '\0' at the end.
        static char Next(string s, ref int at) {
            while (at < s.Length && (s[at] == ' ' || s[at] == '\t' || s[at] == '\r' || s[at] == '\n')) at++;
            return at < s.Length ? s[at] : '\0';
        }

        static bool Take(string s, ref int at, char c) {
            if (Next(s, ref at) != c) return false;
            at++;
            return true;
        }

        static object Value(string s, ref int at, int depth) {
            if (depth > 32) throw Bad(at);
            var c = Next(s, ref at);
            if (c == '"') return Str(s, ref at);
            if (Take(s, ref at, '{')) {
                var members = new Dictionary<string, object>();
                for (var first = true; !Take(s, ref at, '}'); first = false) {
                    if (!first && !Take(s, ref at, ',') || Next(s, ref at) != '"') throw Bad(at);
                    var name = Str(s, ref at);
                    if (!Take(s, ref at, ':')) throw Bad(at);
                    members[name] = Value(s, ref at, depth + 1);
                }
                return members;
            }
            if (Take(s, ref at, '[')) {
                var all = new List<object>();
                while (!Take(s, ref at, ']')) {
                    if (all.Count > 0 && !Take(s, ref at, ',')) throw Bad(at);
                    all.Add(Value(s, ref at, depth + 1));
                }
                return all;
            }
            var end = at;
            while (end < s.Length && (char.IsLetterOrDigit(s[end]) || s[end] == '-' || s[end] == '+' || s[end] == '.')) end++;
            var word = s.Substring(at, end - at);
            double number;
            object value;
            if (word == "true") value = true;
            else if (word == "false") value = false;
            else if (word == "null") value = null;
            else if (double.TryParse(word, NumberStyles.Float, CultureInfo.InvariantCulture, out number)) value = number;
            else throw Bad(at);
            at = end;
            return value;
        }

        static string Str(string s, ref int at) {
            var b = new StringBuilder();
            for (at++; at < s.Length; at++) {
                var c = s[at];
                if (c == '"') { at++; return b.ToString(); }
                if (c == '\\' && ++at < s.Length) {
                    var i = "\"\\/bfnrt".IndexOf(s[at]);
                    int code;
                    if (i >= 0) c = "\"\\/\b\f\n\r\t"[i];
                    else if (s[at] == 'u' && at + 4 < s.Length && int.TryParse(s.Substring(at + 1, 4), NumberStyles.AllowHexSpecifier, CultureInfo.InvariantCulture, out code)) { c = (char)code; at += 4; }
                    else throw Bad(at);
                }
                b.Append(c);
            }
            throw Bad(at);
        }
    }

    /// <summary>How well a region can be reached.</summary>
    public struct RelayQuality {
        public RelayRegion Region;
        /// <summary>Probes.</summary>
        public int Sent, Received;
        /// <summary>The mean round trip of those that were answered.</summary>
        public double RttMilliseconds;
        /// <summary>Why no probe was sent; null.</summary>
        public string Error;
        /// <summary>The share of probes without an answer, from 0 to 1.</summary>
        public double Loss { get { return Sent == 0 ? 1 : (Sent - Received) / (double)Sent; } }

        const int GapMilliseconds = 20, RequestSize = 19, ResponseSize = 13;

        // What measures one region.
        sealed class Prober {
            public RelayQuality Quality;
            public Socket Socket;
            public long[] Left; // when each probe left, in ticks; 0: it has been answered
            public double Sum;
        }

        /// <summary>Sends probes to all regions at once, as Unity's QoS package does, and returns them, the nearest first:
        /// by round trip, then by loss. Those that do not answer come last. It blocks, for as long as the names take and
        /// then 600 ms by default, and may be called by any thread.</summary>
        /// <param name="probes">to each region, at most 100; a relay answers 40 of one address at once and 20 a second</param>
        /// <param name="patienceMilliseconds">how long to wait after the last probe</param>
        public static RelayQuality[] Measure(RelayRegion[] regions, int probes = 5, int patienceMilliseconds = 500) {
            probes = Math.Max(1, Math.Min(probes, 100));
            var id = (ushort)Guid.NewGuid().GetHashCode(); // Answers to another run do not count.
            var all = regions.Select(r => Open(r, probes)).ToArray();
            try {
                for (var i = 0; i < probes; i++) {
                    foreach (var p in all) if (p.Socket != null) Send(p, i, id);
                    Receive(all, id, i + 1 < probes ? GapMilliseconds : patienceMilliseconds, i + 1 == probes);
                }
            } finally {
                foreach (var p in all) if (p.Socket != null) p.Socket.Dispose();
            }
            foreach (var p in all) if (p.Quality.Received > 0) p.Quality.RttMilliseconds = p.Sum / p.Quality.Received;
            return all.Select(p => p.Quality).OrderBy(q => q.Received == 0).ThenBy(q => q.RttMilliseconds).ThenBy(q => q.Loss).ToArray();
        }

        static Prober Open(RelayRegion region, int probes) {
            var p = new Prober { Quality = new RelayQuality { Region = region }, Left = new long[probes] };
            try {
                var address = region.QosAddress ?? "";
                var colon = address.LastIndexOf(':');
                int port;
                if (colon < 0 || !int.TryParse(address.Substring(colon + 1), NumberStyles.None, CultureInfo.InvariantCulture, out port) || port < 1 || port > 65535) {
                    p.Quality.Error = "the region has no address for probes";
                    return p;
                }
                foreach (var ip in Dns.GetHostAddresses(address.Substring(0, colon).Trim('[', ']'))) {
                    p.Socket = Connect(new IPEndPoint(ip, port), ref p.Quality.Error);
                    if (p.Socket != null) { p.Quality.Error = null; break; }
                }
            } catch (Exception e) when (e is SocketException || e is ArgumentException) {
                p.Quality.Error = e.Message;
            }
            return p;
        }

        static Socket Connect(IPEndPoint to, ref string error) {
            Socket s = null;
            try {
                s = new Socket(to.AddressFamily, SocketType.Dgram, ProtocolType.Udp) { Blocking = false };
                s.Connect(to);
                return s;
            } catch (SocketException e) {
                error = e.Message;
                if (s != null) s.Dispose();
                return null;
            }
        }

        static void Send(Prober p, int number, ushort id) {
            var m = new byte[RequestSize]; // 59, version, size of the title and itself, title, number, id, time
            m[0] = 0x59; m[2] = 6;
            Encoding.ASCII.GetBytes("ferry", 0, 5, m, 3);
            m[8] = (byte)number; m[9] = (byte)id; m[10] = (byte)(id >> 8);
            SocketError error; // A probe that the machine cannot send counts as lost.
            p.Left[number] = Stopwatch.GetTimestamp();
            p.Socket.Send(m, 0, m.Length, SocketFlags.None, out error);
            p.Quality.Sent++;
        }

        static void Receive(Prober[] all, ushort id, int milliseconds, bool untilAll) {
            var m = new byte[512];
            for (var clock = Stopwatch.StartNew(); clock.ElapsedMilliseconds < milliseconds;) {
                if (untilAll && all.All(p => p.Socket == null || p.Quality.Received == p.Quality.Sent)) return;
                var received = false;
                foreach (var p in all) {
                    if (p.Socket == null) continue;
                    SocketError error;
                    var size = p.Socket.Receive(m, 0, m.Length, SocketFlags.None, out error);
                    if (error != SocketError.Success) continue; // None, or ICMP.
                    received = true;
                    if (size != ResponseSize || m[0] != 0x95 || m[1] >> 4 != 0 || (m[3] | m[4] << 8) != id || m[2] >= p.Left.Length || p.Left[m[2]] == 0) continue;
                    p.Sum += (Stopwatch.GetTimestamp() - p.Left[m[2]]) * 1000.0 / Stopwatch.Frequency;
                    p.Left[m[2]] = 0;
                    p.Quality.Received++;
                }
                if (!received) Thread.Sleep(1);
            }
        }
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
        /// <summary>Values of Error that are no codes of the relay: the host has all its players; no answer came in time;
        /// another session, such as that of another copy of the game, uses this allocation.</summary>
        public const int HostIsFull = -1, NoAnswer = -2, InUse = -3;
        public Kind What;
        /// <summary>The other side: its 16 bytes as a hexadecimal text. Null if Ended, and for a host with several
        /// players when a message met no link, since the relay does not say which.</summary>
        public string Peer;
        /// <summary>The content of a Message, in the session's buffer: valid until the next call of Poll, Bind or Connect.</summary>
        public ArraySegment<byte> Content;
        /// <summary>Why, for Refused and Ended: the code of an ERROR, HostIsFull, NoAnswer or InUse.</summary>
        public int Error;

        /// <summary>Describes an Error.</summary>
        public static string Reason(int error) {
            switch (error) {
                case HostIsFull: return "the host is full";
                case NoAnswer: return "the relay does not answer";
                case InUse: return "another session uses this allocation";
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

    /// <summary>What a session has counted since it began. Messages and bytes are contents of RELAY.</summary>
    public struct RelayStats {
        public long Sent, SentBytes, Received, ReceivedBytes;
        /// <summary>Messages that the system refused to send, and received ones that the session dropped.</summary>
        public long Unsent, Dropped;
        /// <summary>Times that the session bound again.</summary>
        public long Rebinds;
        /// <summary>PINGs sent, one a second, and those that came back.</summary>
        public long Pings, Echoes;
        /// <summary>To the relay and back, smoothed and newest; 0 before the first echo. A game that calls Poll once in
        /// each frame measures up to a frame more.</summary>
        public double RttMilliseconds, LastRttMilliseconds;
        /// <summary>The share of the last 31 PINGs that did not come back, from 0 to 1: of the way to the relay and back.</summary>
        public double Loss;
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
        // So many BINDs of one nonce without an answer count as refused; and so many refused ones, within that time, as three losses.
        const int RefusedBinds = 4, MaxRefused = 3 * RefusedBinds, RefusedMilliseconds = 30000;
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
        bool firstNonce; // ERROR 3 began this series of BINDs, and it has used no other nonce
        int binds;       // with that
        int refused;     // BINDs
        long refusedSince;
        bool roamNow; // The system refuses to send from the socket.
        readonly byte[] ping;
        ushort pings;     // number of the newest
        int silentPings;
        long pingAt;
        readonly long[] pingedAt = new long[32]; // in ticks, by the number
        uint echoes;      // bit i: the PING with the number pings - i came back

        RelayStats stats;

        // Connecting: the link of a player with its host is asked for, by Connect or again (relinking).
        Peer host;
        bool connecting, relinking;
        long connectSince, connectAt, connectSentAt;
        int connectError; // of the last Connect

        int ended; // why; 0: not yet
        bool disposed;
        int turn, datagrams, leaving;

        public RelaySession(RelayTicket ticket) {
            if (ticket.Id.Length != 16 || ticket.Key.Length != 64 || ticket.ConnectionData.Length > 255) throw new ArgumentException("the ticket has wrong sizes");
            this.ticket = ticket;
            if (ticket.Servers.Length == 0) throw new ArgumentException("the relay has no address for UDP");
            own = new Key(ticket.Id, 0);
            ping = RelayMessage.NewPing(ticket.Id, 0);
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

        /// <summary>What the session has counted, and measured by its PINGs.</summary>
        public RelayStats Stats {
            get {
                var s = stats;
                s.Dropped = Dropped;
                // The newest PING may be on its way.
                var n = Math.Min((int)Math.Min(stats.Pings, 32) - 1, 31);
                var lost = 0;
                for (var i = 1; i <= n; i++) if ((echoes >> i & 1) == 0) lost++;
                s.Loss = n > 0 ? lost / (double)n : 0;
                return s;
            }
        }

        /// <summary>Binds the allocation to this socket. TimeoutException: the relay does not answer. RelayException: it refuses.</summary>
        public void Bind(int withinMilliseconds = 10000) {
            if (disposed) throw new ObjectDisposedException("RelaySession");
            if (!bound && !binding) StartBinding(Now);
            Wait(withinMilliseconds, () => !binding);
        }

        /// <summary>Connects a player with the host of its ticket, and returns the host. Bind first. TimeoutException: the
        /// relay does not answer, or the host is not bound. RelayException: it refuses. A link that the relay drops later is made again without a
        /// call; if that fails, Poll returns Refused, and Connect may be called again.</summary>
        public string Connect(int withinMilliseconds = 10000) {
            if (disposed) throw new ObjectDisposedException("RelaySession");
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
                if (Now >= until) throw new TimeoutException(bound && silentPings <= 1
                    ? "the host of this match is not bound to the relay" : "the relay at " + ticket.Servers[server] + " does not answer");
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
            if (bound && !binding) stats.Rebinds++;
            binding = true;
            bindAt = at;
            firstNonce = false;
        }

        // Called before a series goes on with another nonce. After ERROR 3 the next nonce is higher than each that this session
        // has used, so the relay takes it from whatever port a NAT has chosen, unless another session of this allocation has
        // bound with it. A lost datagram looks the same, so there must be many, and no such nonce that was answered between
        // them. A silence and Roam use up nonces without an answer, and count nothing.
        void CountRefused(long now) {
            firstNonce = false;
            if (refused == 0 || now - refusedSince > RefusedMilliseconds) { refused = 0; refusedSince = now; }
            refused += binds;
            if (refused >= MaxRefused) End(RelayEvent.InUse);
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
            if (!Transmit(sending, RelayMessage.PutRelay(sending, ticket.Id, p.Id, content.Array, content.Offset, content.Count))) { stats.Unsent++; return false; }
            stats.Sent++;
            stats.SentBytes += content.Count;
            return true;
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
                SendPing();
            }
            if (leaving > 0) WorkLeaving(now);
            if (connecting) WorkConnecting(now);
        }

        void SendPing() {
            pings++;
            ping[20] = (byte)pings; ping[21] = (byte)(pings >> 8);
            echoes <<= 1;
            pingedAt[pings % 32] = clock.ElapsedTicks;
            stats.Pings++;
            Transmit(ping);
        }

        void HandlePing(byte[] m) {
            var age = (ushort)(pings - (m[20] | m[21] << 8));
            if (age >= 32 || age >= stats.Pings || (echoes >> age & 1) != 0 || !new Key(m, 4).Equals(own)) return;
            echoes |= 1u << age;
            var rtt = (clock.ElapsedTicks - pingedAt[(ushort)(pings - age) % 32]) * 1000.0 / Stopwatch.Frequency;
            stats.RttMilliseconds = stats.Echoes == 0 ? rtt : stats.RttMilliseconds + (rtt - stats.RttMilliseconds) / 8;
            stats.LastRttMilliseconds = rtt;
            stats.Echoes++;
        }

        void WorkBinding(long now) {
            if (bound && now - bindSince >= RebindMilliseconds || nonce > ushort.MaxValue) { End(RelayEvent.NoAnswer); return; }
            if (firstNonce && (now >= socketUntil || now >= bindAt && binds == RefusedBinds)) { CountRefused(now); if (ended != 0) return; }
            if (now >= socketUntil) {
                Reopen(now, server + 1);
                socketUntil = now + TurnOf(++turns);
            }
            if (now < bindAt) return;
            bindAt = now + RetryMilliseconds;
            bindSentAt = now;
            var number = firstNonce && binds++ > 0 ? nonce - 1 : nonce++;
            Transmit(RelayMessage.NewBind(ticket.ConnectionData, (ushort)number, ticket.Key));
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
                    if (firstNonce) refused = 0;
                    firstNonce = false;
                    pingAt = Now + KeepAliveMilliseconds;
                    if (relinking) connectSince = Now; // The relay's silence said nothing about the link.
                    break;
                case RelayMessage.Ping: HandlePing(m); break;
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
            stats.Received++;
            stats.ReceivedBytes += size - RelayMessage.RelayOverhead;
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
                    if (!bound || binding) break;
                    StartBinding(Math.Max(now, bindSentAt + RetryMilliseconds));
                    firstNonce = true;
                    binds = 0;
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
            if (disposed) return;
            disposed = true;
            if (ended == 0) {
                foreach (var p in byId.Values) Transmit(RelayMessage.NewDisconnect(ticket.Id, p.Id));
                Transmit(RelayMessage.NewClose(ticket.Id));
            }
            socket.Dispose();
        }
    }
}
