//! Names of what calls on sockets take.

use super::{symbols, value};

symbols!(
    /// Families of sockets.
    SOCKET_FAMILIES, "socket_families", 0,
    [AF_UNSPEC, AF_UNIX, AF_INET, AF_AX25, AF_IPX, AF_APPLETALK, AF_X25, AF_INET6, AF_KEY, AF_NETLINK, AF_PACKET, AF_RDS, AF_PPPOX, AF_LLC,
     AF_CAN, AF_TIPC, AF_BLUETOOTH, AF_ALG, AF_VSOCK, AF_XDP]
);
symbols!(
    /// Types of sockets, with the flags that go with them.
    SOCKET_TYPES, "socket_types", 0xf,
    [SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_RDM, SOCK_SEQPACKET, SOCK_DCCP, SOCK_NONBLOCK, SOCK_CLOEXEC]
);
symbols!(
    /// Flags of accept4(2).
    SOCKET_FLAGS, "socket_flags", 0, [SOCK_NONBLOCK, SOCK_CLOEXEC]
);
symbols!(
    /// Flags of messages.
    MESSAGE_FLAGS, "message_flags", 0,
    [MSG_OOB, MSG_PEEK, MSG_DONTROUTE, MSG_CTRUNC, MSG_TRUNC, MSG_DONTWAIT, MSG_EOR, MSG_WAITALL, MSG_CONFIRM, MSG_ERRQUEUE, MSG_NOSIGNAL,
     MSG_MORE, MSG_WAITFORONE, MSG_FASTOPEN, MSG_CMSG_CLOEXEC]
);
symbols!(
    /// What shutdown(2) ends.
    SHUTDOWN_HOW, "shutdown_how", 0, [SHUT_RD, SHUT_WR, SHUT_RDWR]
);
symbols!(
    /// Levels of socket options.
    SOCKET_LEVELS, "socket_levels", 0,
    [IPPROTO_IP, SOL_SOCKET, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_IPV6, IPPROTO_RAW, SOL_NETLINK, SOL_PACKET, SOL_ALG]
);
