// Calls that a game gets wrong, and what they throw: Misuse URL CODE TOKEN. The host of the code is not bound.

using System;

static class Misuse {
    static void Main(string[] args) {
        var api = new Ferry.RelayApi(args[0], args[2]);
        Try("Join(null)", () => api.Join(null));
        Try("Allocate(0)", () => api.Allocate(0));
        Try("refused", () => new Ferry.RelayApi("http://127.0.0.1:1", args[2]).Allocate(1));
        var session = new Ferry.RelaySession(api.Join(args[1]));
        session.Bind();
        Try("Connect", () => session.Connect(1500));
        session.Dispose();
        session.Dispose();
        Try("Bind", () => session.Bind());
        Try("Connect", () => session.Connect());
    }

    static void Try(string what, Action call) {
        try { call(); Console.WriteLine(what + ": nothing"); } catch (Exception e) { Console.WriteLine(what + ": " + e.GetType().Name + ": " + e.Message.Split('\n')[0]); }
    }
}
