//! The keys that seal what clients and the database keep for us, and the file that they come from.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use longhaul_mcp::seal::Keyring;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::Wrong;

/// How often the file is looked at.
pub(crate) const LOOK: Duration = Duration::from_secs(5);

/// The keys of a gateway or a task-store.
#[derive(Clone)]
pub struct Keys {
    ring: Arc<ArcSwap<Keyring>>,
    file: Option<File>,
}

#[derive(Clone)]
struct File {
    path: PathBuf,
    /// What the last look found.
    seen: Result<String, String>,
}

impl From<Keyring> for Keys {
    /// Keys that never change.
    fn from(ring: Keyring) -> Self {
        Self { ring: Arc::new(ArcSwap::from_pointee(ring)), file: None }
    }
}

impl Keys {
    /// The keys of a file.
    pub fn read(path: &Path) -> Result<Self, Wrong> {
        let wrong = |error: &dyn std::fmt::Display| Wrong(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let ring = Keyring::parse(&text).map_err(|error| wrong(&error))?;
        Ok(Self { file: Some(File { path: path.to_owned(), seen: Ok(text) }), ..Self::from(ring) })
    }

    /// Where the keys of the moment are.
    pub(crate) fn ring(&self) -> Arc<ArcSwap<Keyring>> {
        self.ring.clone()
    }

    /// Takes over what changes in the file. What cannot be used changes nothing: the former keys stay.
    pub(crate) async fn follow(self, every: Duration) -> Infallible {
        let Some(File { path, mut seen }) = self.file else { return std::future::pending().await };
        let mut looks = interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let found = tokio::fs::read_to_string(&path).await.map_err(|error| error.to_string());
            if found == seen {
                continue;
            }
            let ring = found.as_ref().map_err(String::clone);
            match ring.and_then(|text| Keyring::parse(text).map_err(|error| error.to_string())) {
                Ok(ring) => {
                    self.ring.store(Arc::new(ring));
                    tracing::info!(file = %path.display(), "the seal keys have changed");
                }
                Err(error) => {
                    tracing::warn!(file = %path.display(), error, "the seal keys cannot be used: the former ones stay");
                }
            }
            seen = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use longhaul_core::{Caller, Principal, TaskId, TenantId, Timestamp};
    use longhaul_mcp::seal::{Seal as _, TaskCursor};

    use super::*;

    /// Often enough for a test, and far below its patience.
    const OFTEN: Duration = Duration::from_millis(5);

    fn line(key: u8) -> String {
        format!("{}\n", STANDARD.encode([key; 32]))
    }

    fn principal() -> Principal {
        Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) }
    }

    fn sealed(ring: &Keyring) -> String {
        let [created_at, expires_at] = [0, 1].map(Timestamp::from_micros);
        ring.seal(&principal(), &TaskCursor { created_at, id: TaskId::from_random(1), expires_at }, [0; 12])
    }

    fn opens(ring: &Keyring, token: &str) -> bool {
        ring.open::<TaskCursor>(&principal(), token, Timestamp::from_micros(0)).is_some()
    }

    #[tokio::test]
    async fn a_file_that_changes_changes_the_keys_and_a_bad_one_does_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // In one step, as an operator should: no look finds half a file.
        let write = |text: &str| {
            let new = tempfile::NamedTempFile::new_in(file.path().parent().unwrap()).unwrap();
            std::fs::write(new.path(), text).unwrap();
            new.persist(file.path()).unwrap();
        };
        write(&line(1));
        let keys = Keys::read(file.path()).unwrap();
        let ring = keys.ring();
        let steps = async {
            let until = async |holds: &dyn Fn(&Keyring) -> bool| {
                while !holds(&ring.load()) {
                    tokio::time::sleep(OFTEN).await;
                }
            };
            let [first, second, third] = [1, 2, 3].map(|key| sealed(&Keyring::new(&[key; 32], &[])));
            assert!(opens(&ring.load(), &first) && !opens(&ring.load(), &second));

            // Known before it is used, then used, then the former one goes.
            write(&(line(1) + &line(2)));
            until(&|ring| opens(ring, &second)).await;
            assert_eq!(sealed(&ring.load()), first);
            write(&(line(2) + &line(1)));
            until(&|ring| sealed(ring) == second).await;
            assert!(opens(&ring.load(), &first));
            write(&line(2));
            until(&|ring| !opens(ring, &first)).await;

            let before = ring.load_full();
            for bad in ["", "no key\n"] {
                write(bad);
                tokio::time::sleep(OFTEN * 10).await;
                assert!(Arc::ptr_eq(&before, &ring.load_full()), "{bad:?}");
            }
            std::fs::remove_file(file.path()).unwrap();
            tokio::time::sleep(OFTEN * 10).await;
            assert!(Arc::ptr_eq(&before, &ring.load_full()));
            write(&line(3));
            until(&|ring| sealed(ring) == third).await;
        };
        tokio::select! {
            never = keys.follow(OFTEN) => match never {},
            done = tokio::time::timeout(Duration::from_secs(20), steps) => done.expect("the keys follow the file"),
        }
    }
}
