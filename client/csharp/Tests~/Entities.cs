// The declarations of Netcode for Entities that the sample FerryDriver uses, in the form of versions 1 and 7, as Unity's published
// reference names them. They hold nothing of Unity's code.

namespace Unity.Entities { public class World { } }

namespace Unity.Networking.Transport { public struct NetworkSettings { } }

namespace Unity.Networking.Transport.Relay {
    public static class RelayParameterExtensions {
        public static NetworkSettings WithRelayParameters(this NetworkSettings settings, ref RelayServerData data) { return settings; }
    }
}

#if NETCODE_7
namespace Unity.Netcode {
    using World = NetcodeWorld;
#else
namespace Unity.NetCode {
    using World = Unity.Entities.World;
#endif
    using Unity.Networking.Transport;
#if NETCODE_7
    public class NetcodeWorld : Unity.Entities.World { }
#endif
    public struct NetworkDriverStore { }
    public struct NetDebug { }
    public interface INetworkStreamDriverConstructor {
        void CreateServerDriver(World world, ref NetworkDriverStore driver, NetDebug netDebug);
        void CreateClientDriver(World world, ref NetworkDriverStore driver, NetDebug netDebug);
    }
    public static class DefaultDriverBuilder {
        public static NetworkSettings GetNetworkServerSettings() { return new NetworkSettings(); }
        public static NetworkSettings GetNetworkSettings() { return new NetworkSettings(); }
        public static void RegisterServerUdpDriver(World world, ref NetworkDriverStore store, NetDebug debug, NetworkSettings settings) { }
        public static void RegisterClientUdpDriver(World world, ref NetworkDriverStore store, NetDebug debug, NetworkSettings settings) { }
    }
}
