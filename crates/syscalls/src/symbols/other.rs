//! Names of what calls on time, events and locks take.

use super::{symbols, value};

symbols!(
    /// Clocks.
    CLOCKS, "clocks", 0,
    [CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE,
     CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME, CLOCK_REALTIME_ALARM, CLOCK_BOOTTIME_ALARM, CLOCK_TAI]
);
symbols!(
    /// Flags of clock_nanosleep(2) and timer_settime(2).
    TIMER_FLAGS, "timer_flags", 0, [TIMER_ABSTIME]
);
symbols!(
    /// Flags of timerfd_create(2).
    TIMERFD_FLAGS, "timerfd_flags", 0, [TFD_NONBLOCK, TFD_CLOEXEC]
);
symbols!(
    /// Flags of timerfd_settime(2).
    TIMERFD_SETTIME_FLAGS, "timerfd_settime_flags", 0, [TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET]
);
symbols!(
    /// Flags of signalfd4(2).
    SIGNALFD_FLAGS, "signalfd_flags", 0, [SFD_NONBLOCK, SFD_CLOEXEC]
);
symbols!(
    /// Flags of eventfd2(2).
    EVENTFD_FLAGS, "eventfd_flags", 0, [EFD_SEMAPHORE, EFD_NONBLOCK, EFD_CLOEXEC]
);
symbols!(
    /// Flags of epoll_create1(2).
    EPOLL_CREATE_FLAGS, "epoll_create_flags", 0, [EPOLL_CLOEXEC]
);
symbols!(
    /// Operations of epoll_ctl(2).
    EPOLL_OPERATIONS, "epoll_operations", 0, [EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD]
);
symbols!(
    /// Events of epoll_ctl(2).
    EPOLL_EVENTS, "epoll_events", 0,
    [EPOLLIN, EPOLLPRI, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDNORM, EPOLLRDBAND, EPOLLWRNORM, EPOLLWRBAND, EPOLLMSG, EPOLLRDHUP,
     EPOLLEXCLUSIVE, EPOLLWAKEUP, EPOLLONESHOT, EPOLLET]
);
symbols!(
    /// Operations of futex(2), with their flags.
    FUTEX_OPERATIONS, "futex_operations", 0x7f,
    [FUTEX_WAIT, FUTEX_WAKE, FUTEX_FD, FUTEX_REQUEUE, FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP, FUTEX_LOCK_PI, FUTEX_UNLOCK_PI, FUTEX_TRYLOCK_PI,
     FUTEX_WAIT_BITSET, FUTEX_WAKE_BITSET, FUTEX_WAIT_REQUEUE_PI, FUTEX_CMP_REQUEUE_PI, FUTEX_LOCK_PI2, FUTEX_PRIVATE_FLAG,
     FUTEX_CLOCK_REALTIME]
);
symbols!(
    /// Flags of getrandom(2).
    GETRANDOM_FLAGS, "getrandom_flags", 0, [GRND_NONBLOCK, GRND_RANDOM, GRND_INSECURE]
);
