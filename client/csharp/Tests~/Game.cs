// The sample FerryMatch, played without Unity: a command on standard input, events on standard output.
//
//   Game URL TOKEN host|CODE

using System;
using System.Collections.Concurrent;
using System.Reflection;
using System.Threading;
using Unity.Netcode;

static class Game {
    static readonly FerryMatch match = new FerryMatch { Transport = "udp" };

    static void Call(string name) { typeof(FerryMatch).GetMethod(name, BindingFlags.Instance | BindingFlags.NonPublic).Invoke(match, null); }

    static void Main(string[] args) {
        match.Url = args[0];
        match.Token = args[1];
        var over = false;
        match.Over += reason => { Console.WriteLine("over: " + reason); over = true; };
        Call("Start");
        var commands = new BlockingCollection<string>();
        new Thread(() => {
            for (string line; (line = Console.ReadLine()) != null;) commands.Add(line);
            commands.Add("quit");
        }) { IsBackground = true }.Start();
        if (args[2] == "host") Console.WriteLine("code " + match.HostMatch(4).Result); else match.JoinMatch(args[2]).Wait();
        for (; !over; Thread.Sleep(5)) {
            string command;
            commands.TryTake(out command);
            if (command == "leave") { match.LeaveMatch(); return; }
            if (command == "quit") return; // without a word, as a crash
            Call("Update");
            NetworkManager.Singleton.Frame();
        }
    }
}
