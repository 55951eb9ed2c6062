// A game that csharp_test.go plays by lines: a command on standard input, events on standard output.
//
//   Play URL TOKEN host|echo|CODE   a host, a host that sends messages back and prints none, or a player
//   Play bytes                      prints messages, for the comparison with those of Go
//   Play regions URL TOKEN          measures the regions

using System;
using System.Collections.Concurrent;
using System.Diagnostics;
using System.Globalization;
using System.Linq;
using System.Text;
using System.Threading;

static class Play {
    static void Main(string[] args) {
        if (args[0] == "bytes") { Bytes(); return; }
        if (args[0] == "regions") { Regions(new Ferry.RelayApi(args[1], args[2])); return; }
        const int patience = 60000; // milliseconds, on a machine that is busy with other tests
        var api = new Ferry.RelayApi(args[0], args[1]) { TimeoutMilliseconds = patience };
        bool echo = args[2] == "echo", host = echo || args[2] == "host";
        var ticket = host ? api.Allocate(4) : api.Join(args[2]);
        var commands = new BlockingCollection<string>();
        new Thread(() => {
            for (string line; (line = Console.ReadLine()) != null;) commands.Add(line);
            commands.Add("leave");
        }) { IsBackground = true }.Start();
        using (var session = new Ferry.RelaySession(ticket)) {
            session.Bind(patience);
            if (host) Console.WriteLine("code " + api.JoinCode(ticket.AllocationId));
            string peer = null;
            for (;; Thread.Sleep(5)) {
                string command;
                var words = (commands.TryTake(out command) ? command : "").Split(' ');
                switch (words[0]) {
                    case "leave": return;
                    case "connect":
                        try { peer = session.Connect(patience); Console.WriteLine("connected"); }
                        catch (Ferry.RelayException e) { Console.WriteLine("connect: " + e.Error); }
                        break;
                    case "send": if (!session.Send(peer, Encoding.UTF8.GetBytes(words[1]))) Console.WriteLine("not sent"); break;
                    case "disconnect": session.Disconnect(peer); break;
                    case "migrate":
                        try {
                            Console.WriteLine("migrate " + (api.Migrate(words[1], ticket.HostConnectionData, 500).HostConnectionData == null ? "host" : "player"));
                        } catch (TimeoutException) {
                            Console.WriteLine("migrate timeout");
                        } catch (Ferry.RelayApiException x) {
                            Console.WriteLine("migrate {0} {1} {2}", x.MatchIsOver ? "over" : "refused", x.Status, x.Code);
                        }
                        break;
                    case "stats":
                        var stats = session.Stats;
                        Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "stats {0} {1} {2} {3} {4} {5} {6} {7}",
                            stats.Sent, stats.Received, stats.Rebinds, stats.Pings, stats.Echoes, stats.RttMilliseconds, stats.LastRttMilliseconds, stats.Loss));
                        break;
                    case "allocations": Allocations(session, peer, int.Parse(words[1])); break;
                    case "flood": Flood(session, int.Parse(words[1])); break;
                }
                for (Ferry.RelayEvent e; session.Poll(out e);) {
                    var to = e.Peer == null ? "nobody" : e.Peer == peer ? "peer" : "other";
                    switch (e.What) {
                        case Ferry.RelayEvent.Kind.Message: if (echo) session.Send(e.Peer, e.Content); else Console.WriteLine("message " + Encoding.UTF8.GetString(e.Content.Array, e.Content.Offset, e.Content.Count)); break;
                        case Ferry.RelayEvent.Kind.Joined: if (host) { peer = e.Peer; Console.WriteLine("joined"); } break;
                        case Ferry.RelayEvent.Kind.Left: Console.WriteLine("left " + to); break;
                        default: Console.WriteLine("{0} {1} {2}", e.What.ToString().ToLowerInvariant(), to, e.Error); break;
                    }
                }
            }
        }
    }

    // Sends messages until so many have come back, and prints how many bytes that allocated and how often the collector ran.
    static void Allocations(Ferry.RelaySession session, string peer, int messages) {
        var content = new byte[100];
        var warm = 1000;
        long before = 0;
        int collections = 0, sent = 0;
        for (int i = 0, back = 0; back < messages; i++) {
            if (back >= warm) { warm = int.MaxValue; before = GC.GetAllocatedBytesForCurrentThread(); collections = GC.CollectionCount(0); sent = back; }
            session.Send(peer, content);
            for (Ferry.RelayEvent e; session.Poll(out e);) if (e.What == Ferry.RelayEvent.Kind.Message) back++;
            if (i % 4 == 3) Thread.Sleep(1); // The relay drops what comes faster than 1000 a second.
        }
        Console.WriteLine("allocations {0} {1} {2}", messages - sent, GC.GetAllocatedBytesForCurrentThread() - before, GC.CollectionCount(0) - collections);
    }

    // Plays 20 turns a second until so many messages have come and some were dropped, and prints how many came
    // and were dropped, how many the busiest turn had, how long the longest took, and how much memory they cost.
    static void Flood(Ferry.RelaySession session, int messages) {
        var dropped = session.Dropped;
        int all = 0, most = 0;
        long longest = 0, memory = GC.GetTotalMemory(true);
        for (var clock = Stopwatch.StartNew(); all < messages || session.Dropped == dropped; Thread.Sleep(50)) {
            var n = 0;
            var begin = clock.ElapsedMilliseconds;
            for (Ferry.RelayEvent e; session.Poll(out e);) { n++; Thread.SpinWait(2000); } // a game that works
            longest = Math.Max(longest, clock.ElapsedMilliseconds - begin);
            most = Math.Max(most, n);
            all += n;
        }
        Console.WriteLine("flood {0} {1} {2} {3} {4}", all, session.Dropped - dropped, most, longest, GC.GetTotalMemory(false) - memory);
    }

    static void Regions(Ferry.RelayApi api) {
        foreach (var q in Ferry.RelayQuality.Measure(api.Regions()))
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "{0} {1} {2} {3} {4} {5} {6}", q.Region.Id, q.Sent, q.Received, q.RttMilliseconds, q.Loss,
                BitConverter.ToString(Encoding.UTF8.GetBytes(q.Region.Description)).Replace("-", "").ToLowerInvariant(), q.Error));
    }

    static void Bytes() {
        var id = Enumerable.Range(1, 16).Select(i => (byte)i).ToArray();
        var to = Enumerable.Range(101, 16).Select(i => (byte)i).ToArray();
        var key = Enumerable.Range(1, 64).Select(i => (byte)i).ToArray();
        var data = Enumerable.Range(1, 255).Select(i => (byte)i).ToArray();
        var relay = new byte[Ferry.RelayMessage.RelayOverhead + 245];
        Ferry.RelayMessage.PutRelay(relay, id, to, data, 10, 245);
        foreach (var m in new[] {
            Ferry.RelayMessage.NewBind(data, 0x1234, key), Ferry.RelayMessage.NewPing(id, 0x1234), Ferry.RelayMessage.NewConnectRequest(id, data),
            relay, Ferry.RelayMessage.NewDisconnect(id, to), Ferry.RelayMessage.NewClose(id),
        }) Console.WriteLine(BitConverter.ToString(m).Replace("-", "").ToLowerInvariant());
    }
}
