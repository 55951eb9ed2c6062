// Host migration beside the transport of a game's netcode, such as Unity's: the netcode carries the match, and this
// decides where it goes on when its host has left. The server must permit it (setting host_migration of Ferry).

using System;
using System.Diagnostics;
using System.Threading.Tasks;

namespace Ferry {
    /// <summary>What the game does with the transport of its netcode. FerryHostMigration calls it on the game's thread.</summary>
    public interface IMigratingTransport {
        /// <summary>Ends the connections of the game, if there are any.</summary>
        void StopTransport();
        /// <summary>Starts the game's netcode with that ticket: as a host if it has no HostConnectionData, or as a player.</summary>
        void StartTransport(RelayTicket ticket);
    }

    /// <summary>Keeps a match when its host leaves or crashes: one of its players becomes the host, under the same join
    /// code. All methods are called by the game's thread. It has no thread of its own; a call of the API waits on
    /// the pool's.</summary>
    public sealed class FerryHostMigration {
        public enum Phase {
            /// <summary>There is no match.</summary>
            None,
            /// <summary>The netcode has the match.</summary>
            Playing,
            /// <summary>The host has left, and the relay is asked who is the next.</summary>
            Asking,
            /// <summary>There is a next host, and the netcode stops before it starts with it.</summary>
            Restarting,
        }

        /// <summary>A stopped netcode may need a few turns of the game before it can start again: so many calls of Update.</summary>
        public int StopUpdates = 3;
        /// <summary>How long this player lets others go first. A game gives the players that it prefers as hosts less.</summary>
        public int DelayMilliseconds = 0;
        /// <summary>How long this player asks for a next host before the match is over for it.</summary>
        public int LimitMilliseconds = 60000;

        /// <summary>The match is over for this player, and why.</summary>
        public event Action<string> Over;

        readonly RelayApi api;
        readonly IMigratingTransport transport;
        readonly Stopwatch clock = Stopwatch.StartNew();
        string joinCode, allocationId;
        byte[] connectionData; // of this host, if the game has told it
        byte[] hostConnectionData; // of the host that may have left; null if the match began with this host
        Task<Answer> call;
        RelayTicket next;
        long askSince, askAt;
        int updates;

        sealed class Answer { public RelayTicket Next; public int Wait; }

        public FerryHostMigration(RelayApi api, IMigratingTransport transport) { this.api = api; this.transport = transport; }

        public Phase Now { get; private set; }
        /// <summary>Whether this player is the host of the match, or starts as that.</summary>
        public bool IsHost { get { return Now != Phase.None && allocationId != null; } }

        /// <summary>The game has started as the host of a match.</summary>
        /// <param name="connectionData">that of the ticket or Allocation, which Leave needs with a token that many players share</param>
        public void BeginAsHost(string joinCode, string allocationId, byte[] connectionData = null) {
            Begin(joinCode, allocationId, null);
            this.connectionData = connectionData;
        }

        /// <summary>The game has started as a player of a match.</summary>
        /// <param name="hostConnectionData">that of the player's ticket or JoinAllocation</param>
        public void BeginAsPlayer(string joinCode, byte[] hostConnectionData) { Begin(joinCode, null, hostConnectionData); }

        void Begin(string code, string allocation, byte[] host) {
            joinCode = code;
            allocationId = allocation;
            hostConnectionData = host;
            Now = Phase.Playing;
            call = null;
        }

        /// <summary>Leaves the match in place of a shutdown of the netcode. A host says so to the relay before, since its
        /// netcode does not: without that its players wait for 7 s. It blocks for as long as that call takes, so
        /// that it works while the program quits. False: the relay did not answer in time.</summary>
        public bool Leave(int withinMilliseconds = 1000) {
            var answered = true;
            if (IsHost && Now == Phase.Playing)
                try { api.Leave(allocationId, withinMilliseconds, connectionData); } catch (RelayApiException) { answered = false; }
            Now = Phase.None;
            call = null;
            transport.StopTransport();
            return answered;
        }

        /// <summary>The netcode has lost its host, or its own place at the relay, or could not start. Call it when the netcode
        /// says so; it may say it twice. A host whose player has left has lost nothing.</summary>
        public void Lost() {
            if (Now != Phase.Playing) return;
            Now = Phase.Asking;
            allocationId = null;
            askSince = clock.ElapsedMilliseconds;
            askAt = askSince + DelayMilliseconds;
        }

        /// <summary>Call it in each turn of the game.</summary>
        public void Update() {
            if (Now == Phase.Asking) Ask();
            if (Now != Phase.Restarting || updates-- > 0) return;
            Now = Phase.Playing; // StartTransport may call Lost.
            transport.StartTransport(next);
        }

        void Ask() {
            if (call == null) {
                if (clock.ElapsedMilliseconds - askSince > LimitMilliseconds) { End("no player has become the host"); return; }
                if (clock.ElapsedMilliseconds < askAt) return;
                string code = joinCode;
                var host = hostConnectionData;
                call = Task.Run(() => { var a = new Answer(); if (!api.TryMigrate(code, host, out a.Next, out a.Wait)) a.Next = null; return a; });
                return;
            }
            if (!call.IsCompleted) return;
            var done = call;
            call = null;
            if (done.IsFaulted) { End(done.Exception.InnerException.Message); return; }
            next = done.Result.Next;
            if (next == null) { askAt = clock.ElapsedMilliseconds + done.Result.Wait; return; }
            // A player whose BIND as a host fails asks again with the data of the host that has left.
            if (next.HostConnectionData == null) { allocationId = next.AllocationId; connectionData = next.ConnectionData; } else hostConnectionData = next.HostConnectionData;
            Now = Phase.Restarting;
            updates = StopUpdates;
            transport.StopTransport();
        }

        void End(string reason) {
            Now = Phase.None;
            transport.StopTransport();
            if (Over != null) Over(reason);
        }
    }
}
