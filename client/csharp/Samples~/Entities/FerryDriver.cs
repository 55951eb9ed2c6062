// The driver constructor of Netcode for Entities that reaches a relay. Set it before the worlds are made:
// NetworkStreamReceiveSystem.DriverConstructor = new FerryDriver { Host = data, Player = data };
// NETCODE_7 comes from the version defines of this directory's assembly. For ws and wss register the WebSocket driver instead.

using Unity.Networking.Transport;
using Unity.Networking.Transport.Relay;
#if NETCODE_7
using Unity.Netcode;
using World = Unity.Netcode.NetcodeWorld;
#else
using Unity.Entities;
using Unity.NetCode;
#endif

public class FerryDriver : INetworkStreamDriverConstructor {
    public RelayServerData Host, Player;

    public void CreateServerDriver(World world, ref NetworkDriverStore store, NetDebug debug) {
        var settings = DefaultDriverBuilder.GetNetworkServerSettings();
        DefaultDriverBuilder.RegisterServerUdpDriver(world, ref store, debug, settings.WithRelayParameters(ref Host));
    }

    public void CreateClientDriver(World world, ref NetworkDriverStore store, NetDebug debug) {
        var settings = DefaultDriverBuilder.GetNetworkSettings();
        DefaultDriverBuilder.RegisterClientUdpDriver(world, ref store, debug, settings.WithRelayParameters(ref Player));
    }
}
