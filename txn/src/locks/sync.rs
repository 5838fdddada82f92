//! The mutex of the lock manager; under the unit tests that of shuttle, which runs the threads of a model in all orders that it
//! comes across.

#[cfg(not(test))]
pub(super) use parking_lot::Mutex;

#[cfg(test)]
pub(super) use model::Mutex;

#[cfg(test)]
mod model {
    use shuttle::sync;

    #[derive(Default)]
    pub(in crate::locks) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(in crate::locks) fn lock(&self) -> sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}
