// A host or a player in a console, which also is a test of FerryRelay.cs:
//
//   Echo host URL [TOKEN]          prints the join code, and sends every message back
//   Echo join URL CODE [TOKEN]     sends the lines of its standard input, and prints what comes

using System;
using System.Collections.Concurrent;
using System.Linq;
using System.Text;
using System.Threading;

static class Echo {
    static int Main(string[] args) {
        try {
            switch (args.FirstOrDefault()) {
                case "host": Host(args[1], args.ElementAtOrDefault(2)); return 0;
                case "join": Join(args[1], args[2], args.ElementAtOrDefault(3)); return 0;
            }
        } catch (Ferry.RelayException e) {
            Console.Error.WriteLine("ended: {0}", e.Message);
            return 1;
        } catch (ArgumentException e) {
            Console.Error.WriteLine(e.Message);
            return 1;
        } catch (Ferry.RelayApiException e) {
            Console.Error.WriteLine("refused: {0} {1}: {2}", e.Status, e.Code, e.Message);
            return 1;
        }
        Console.Error.WriteLine("usage: Echo host URL [TOKEN] | join URL CODE [TOKEN]");
        return 2;
    }

    static void Host(string url, string token) {
        var api = new Ferry.RelayApi(url, token);
        var ticket = api.Allocate(4);
        using (var session = new Ferry.RelaySession(ticket)) {
            session.Bind();
            Console.WriteLine("code " + api.JoinCode(ticket.AllocationId));
            for (;; Thread.Sleep(5))
                for (Ferry.RelayEvent e; session.Poll(out e);) {
                    if (e.What == Ferry.RelayEvent.Kind.Message) session.Send(e.Peer, e.Content);
                    if (e.What == Ferry.RelayEvent.Kind.Left) { Console.WriteLine("left"); return; }
                    if (e.What == Ferry.RelayEvent.Kind.Ended) throw new Ferry.RelayException(e.Error);
                }
        }
    }

    static void Join(string url, string code, string token) {
        using (var session = new Ferry.RelaySession(new Ferry.RelayApi(url, token).Join(code))) {
            session.Bind();
            var host = session.Connect();
            Console.WriteLine("connected");
            var lines = new BlockingCollection<string>();
            new Thread(() => {
                for (string read; (read = Console.ReadLine()) != null;) lines.Add(read);
                lines.CompleteAdding();
            }) { IsBackground = true }.Start();
            // Datagrams may be lost: a line is sent again until it comes back. The session is polled all the time.
            string line = null;
            for (var turn = 0; line != null || !lines.IsCompleted; Thread.Sleep(10), turn++) {
                if (line == null && lines.TryTake(out line)) turn = 0;
                if (line != null && turn % 20 == 0) session.Send(host, Encoding.UTF8.GetBytes(line));
                for (Ferry.RelayEvent e; session.Poll(out e);) {
                    if (e.What == Ferry.RelayEvent.Kind.Left) { Console.WriteLine("left"); return; }
                    if (e.What >= Ferry.RelayEvent.Kind.Refused) throw new Ferry.RelayException(e.Error);
                    if (e.What != Ferry.RelayEvent.Kind.Message || line == null) continue;
                    if (Encoding.UTF8.GetString(e.Content.Array, e.Content.Offset, e.Content.Count) != line) continue;
                    Console.WriteLine("back " + line);
                    line = null;
                }
            }
        }
    }
}
