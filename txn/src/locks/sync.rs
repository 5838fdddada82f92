//! The mutex and the condition variable; under the unit tests those of shuttle, which runs the threads of a model in all
//! orders that it comes across.

#[cfg(not(test))]
pub(super) use parking_lot::{Condvar, Mutex};

#[cfg(test)]
pub(super) use model::{Condvar, Mutex};

#[cfg(test)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use shuttle::sync;

    #[derive(Default)]
    pub(in crate::locks) struct Mutex<T>(sync::Mutex<T>);

    /// The guard is away only while its thread waits.
    pub(in crate::locks) struct Guard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    pub(in crate::locks) struct Condvar(sync::Condvar);

    pub(in crate::locks) struct Waited;

    impl<T> Mutex<T> {
        pub(in crate::locks) fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().unwrap()))
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    impl Condvar {
        pub(in crate::locks) fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub(in crate::locks) fn notify_one(&self) {
            self.0.notify_one();
        }

        /// The deadline never passes, so that a thread that is never woken ends the test.
        pub(in crate::locks) fn wait_for<T>(
            &self,
            guard: &mut Guard<'_, T>,
            _: Duration,
        ) -> Waited {
            guard.0 = guard.0.take().map(|held| self.0.wait(held).unwrap());
            Waited
        }
    }

    impl Waited {
        pub(in crate::locks) fn timed_out(&self) -> bool {
            false
        }
    }
}
