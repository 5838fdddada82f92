//! Messages of a run to its user.

use std::sync::Arc;

/// Reports to the user, a line at a time.
#[derive(Clone)]
pub struct Reporter(Arc<dyn Fn(&str) + Send + Sync>);

impl Reporter {
    /// Reports by `report`, which any thread may call.
    pub fn new(report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// Reports one line.
    pub fn line(&self, text: &str) {
        (self.0)(text);
    }
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}
