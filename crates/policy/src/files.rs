//! Rules that come from files, and follow them as they change.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{MissedTickBehavior, interval};

use crate::metrics;

/// How often the files are looked at.
pub const LOOK: Duration = Duration::from_secs(2);
/// Files of one set.
const FILES_MAX: usize = 1000;
/// All of them together, in bytes.
const BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Files by their names, in order.
pub(crate) type Texts = Vec<(String, String)>;
type Build<T> = Arc<dyn Fn(&Texts) -> Result<T, String> + Send + Sync>;

/// What was made of a file, or of the files of a folder; the last that could be used.
pub(crate) struct Watched<T> {
    what: &'static str,
    path: PathBuf,
    build: Build<T>,
    now: ArcSwap<T>,
    seen: Mutex<Seen>,
}

struct Seen {
    texts: Result<Texts, String>,
    /// Why the files as they are cannot be used, if they cannot.
    wrong: Option<String>,
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.path.display())
    }
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads what is at `path`: a file, or a folder with those files in it that `build` knows what to do with.
    pub(crate) fn read(
        what: &'static str,
        path: &Path,
        build: impl Fn(&Texts) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let wrong = |error: String| format!("{}: {error}", path.display());
        let texts = texts(path).map_err(wrong)?;
        let now = ArcSwap::from_pointee(build(&texts).map_err(wrong)?);
        metrics::reloaded(what, true);
        let seen = Mutex::new(Seen { texts: Ok(texts), wrong: None });
        Ok(Self { what, path: path.to_owned(), build: Arc::new(build), now, seen })
    }

    /// What is in force.
    pub(crate) fn load(&self) -> Arc<T> {
        self.now.load_full()
    }

    /// What is wrong with the files as they are: the former ones are in force.
    pub(crate) fn stale(&self) -> Option<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let wrong = seen.wrong.as_ref()?;
        Some(format!("{}: {}: the former ones stay in force: {wrong}", self.what, self.path.display()))
    }

    /// Takes over what changes. What cannot be used changes nothing.
    pub(crate) async fn follow(&self, every: Duration) -> Infallible {
        let mut looks = interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    async fn look(&self) {
        let (path, build) = (self.path.clone(), self.build.clone());
        let former = self.seen.lock().unwrap_or_else(PoisonError::into_inner).texts.clone();
        // Reading and compiling take their time, and block.
        let looked = tokio::task::spawn_blocking(move || {
            let found = texts(&path);
            if found == former {
                return None;
            }
            let built = found.as_ref().map_err(String::clone).and_then(|texts| build(texts));
            Some((found, built))
        });
        let Ok(Some((texts, built))) = looked.await else { return };
        metrics::reloaded(self.what, built.is_ok());
        let wrong = match built {
            Ok(new) => {
                self.now.store(Arc::new(new));
                tracing::info!(path = %self.path.display(), what = self.what, "a change is in force");
                None
            }
            Err(error) => {
                tracing::warn!(
                    path = %self.path.display(), what = self.what, error,
                    "a change cannot be used: the former ones stay in force"
                );
                Some(error)
            }
        };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Seen { texts, wrong };
    }
}

fn texts(path: &Path) -> Result<Texts, String> {
    let said = |error: std::io::Error| error.to_string();
    let mut files = Vec::new();
    if std::fs::metadata(path).map_err(said)?.is_dir() {
        for entry in std::fs::read_dir(path).map_err(said)? {
            let entry = entry.map_err(said)?;
            let name = entry.file_name().into_string().map_err(|name| format!("{name:?} is not UTF-8"))?;
            // Mounted folders have hidden entries of their own.
            if !name.starts_with('.') && std::fs::metadata(entry.path()).map_err(said)?.is_file() {
                files.push((name, entry.path()));
            }
            if files.len() > FILES_MAX {
                return Err(format!("more than {FILES_MAX} files"));
            }
        }
        files.sort();
    } else {
        files.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path.to_owned()));
    }
    let mut bytes = 0;
    let text = |(name, path): (String, PathBuf)| {
        bytes += std::fs::metadata(&path).map_err(said)?.len();
        if bytes > BYTES_MAX {
            return Err(format!("more than {BYTES_MAX} bytes"));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
        Ok((name, text))
    };
    files.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_is_taken_over_and_one_that_cannot_be_used_is_told_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let sum = |texts: &Texts| {
            let number =
                |(name, text): &(String, String)| text.parse::<u32>().map_err(|_| format!("{name} is no number"));
            texts.iter().map(number).sum::<Result<u32, String>>()
        };
        write("a", "1");
        write("b", "2");
        write(".hidden", "x");
        let watched = Watched::read("numbers", folder.path(), sum).unwrap();
        assert_eq!((*watched.load(), watched.stale()), (3, None));
        write("b", "x");
        watched.look().await;
        assert_eq!(*watched.load(), 3);
        assert!(watched.stale().unwrap().ends_with("b is no number"));
        write("b", "4");
        watched.look().await;
        assert_eq!((*watched.load(), watched.stale()), (5, None));
        std::fs::remove_dir_all(folder.path()).unwrap();
        watched.look().await;
        assert_eq!(*watched.load(), 5);
        assert!(watched.stale().is_some());
    }

    #[test]
    fn what_is_wrong_at_the_start_is_said() {
        let wrong = Watched::read("numbers", Path::new("/no/such/file"), |_| Ok(())).unwrap_err();
        assert!(wrong.starts_with("/no/such/file: "), "{wrong}");
    }
}
