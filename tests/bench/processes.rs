//! Processes that the benchmark started: they end with it, and what they cost is read from /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The kernel counts CPU time in hundredths of a second, whatever its own tick.
const TICK: Duration = Duration::from_millis(10);
/// Of the log of a process that died, this much is shown.
const LOG_CHARS: usize = 2000;

/// A child process, killed when dropped.
pub struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with nothing of this process's environment but where programs are.
    pub fn start(name: &'static str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = fs::File::create(&log)?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        Ok(Self { name, child, log })
    }

    /// The first line that it prints.
    pub async fn first_line(&mut self) -> Result<String> {
        let output = self.child.stdout.take().context("the first line was already taken")?;
        let line = BufReader::new(output).lines().next_line().await?;
        line.with_context(|| format!("{} ended: {}", self.name, self.log()))
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} died ({status}): {}", self.name, self.log()),
        }
    }

    /// Ends it, and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Waits until it ends by itself, which must be well.
    pub async fn finish(mut self) -> Result<()> {
        let status = self.child.wait().await?;
        if !status.success() {
            bail!("{} failed ({status}): {}", self.name, self.log());
        }
        Ok(())
    }

    /// Its resident memory in bytes.
    pub fn resident(&self) -> Result<u64> {
        let pid = self.child.id().with_context(|| format!("{} ended", self.name))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }

    /// Where its CPU time is read.
    pub fn meter(&self) -> Option<Meter> {
        Some(Meter { name: self.name, pid: self.child.id()?, family: false })
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let skipped = text.chars().count().saturating_sub(LOG_CHARS);
        text.chars().skip(skipped).collect()
    }
}

/// Reads a process's CPU time.
#[derive(Debug, Clone)]
pub struct Meter {
    /// Whose.
    pub name: &'static str,
    /// Its id.
    pub pid: u32,
    /// Whether its children count too.
    pub family: bool,
}

impl Meter {
    /// The CPU time used until now; zero for a process that cannot be seen.
    pub fn used(&self) -> Duration {
        let Some(own) = Stat::read(self.pid) else { return Duration::ZERO };
        let mut ticks = own.used;
        if self.family {
            ticks += own.used_by_ended_children;
            let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            ticks +=
                pids.filter_map(Stat::read).filter(|stat| stat.parent == self.pid).map(|stat| stat.used).sum::<u32>();
        }
        TICK * ticks
    }
}

struct Stat {
    parent: u32,
    used: u32,
    used_by_ended_children: u32,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything; the fields after it are numbered from the state, 3 in proc(5).
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u32>().ok();
        Some(Self {
            parent: number(4)?,
            used: number(14)? + number(15)?,
            used_by_ended_children: number(16)? + number(17)?,
        })
    }
}
