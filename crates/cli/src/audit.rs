//! `longhaul audit`: the audit log is proved and read.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use clap::{Args, Subcommand};
use longhaul_bus::LocalBus;
use longhaul_core::audit::{Broken, Entry, Hash, Link, NotAHash, Sealed, Walk};
use longhaul_core::{Caller, Principal, TenantId, Timestamp};
use longhaul_rpc::{AuditChain, AuditRange, Control, Error};
use longhaul_taskstore::TaskStore;
use serde_json::{Map, Value};

use crate::compose;
use crate::config::{Config, Wrong};
use crate::keys::Keys;

/// How often a chain is looked at again whose oldest rows went past their retention meanwhile.
const LOOKS_MAX: u32 = 3;

/// What to do with the audit log.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Proves that nothing was changed, left out, put in or moved since it was sealed; fails naming the first row that shows it.
    Verify {
        #[command(flatten)]
        which: Which,
        /// A row that was noted before, as SEQ:HASH: the chain must still lead through it.
        #[arg(long, value_name = "SEQ:HASH", requires = "tenant", conflicts_with = "until")]
        noted: Option<Noted>,
    },
    /// Prints the rows as JSON Lines.
    Export {
        #[command(flatten)]
        which: Which,
    },
}

/// Which rows, and where they are.
#[derive(Debug, Clone, Args)]
pub(crate) struct Which {
    /// Those of this tenant; empty for what concerns the installation as a whole.
    #[arg(long)]
    tenant: Option<String>,
    /// From this moment on: `2026-12-01`, or with a time as in RFC 3339.
    #[arg(long, value_parser = moment)]
    since: Option<Timestamp>,
    /// Up to this moment.
    #[arg(long, value_parser = moment)]
    until: Option<Timestamp>,
    /// The data folder of a `longhaul dev`; without it, the task-store of the config is asked.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

/// A row that was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted(Link);

impl FromStr for Noted {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let (seq, hash) = text.split_once(':').ok_or(NotAHash)?;
        Ok(Self(Link { seq: seq.parse().map_err(|_| NotAHash)?, hash: hash.parse()? }))
    }
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let moment = match NaiveDate::from_str(text) {
        Ok(day) => day.and_time(chrono::NaiveTime::MIN).and_utc(),
        Err(_) => DateTime::parse_from_rfc3339(text)
            .map_err(|error| format!("{error}; 2026-12-01 and 2026-12-01T08:00:00Z are moments"))?
            .to_utc(),
    };
    Ok(Timestamp::from_micros(moment.timestamp_micros()))
}

/// Does it, and says so at `out`.
pub(crate) async fn run(verb: Verb, config: Arc<Config>, out: impl Write) -> anyhow::Result<()> {
    let (Verb::Verify { which, .. } | Verb::Export { which }) = &verb;
    let control: Arc<dyn Control> = match &which.data {
        Some(data) => Arc::new(open(data).await?),
        None => Arc::new(compose::control(config)?),
    };
    let mut out = BufWriter::new(out);
    let done = match verb {
        Verb::Verify { which, noted } => verify(&*control, &which, noted, &mut out).await,
        Verb::Export { which } => export(&*control, &which, &mut out).await,
    };
    let flushed = out.flush().map_err(anyhow::Error::from);
    match done.and(flushed) {
        // Whoever reads has seen enough.
        Err(error) if error.downcast_ref().is_some_and(is_broken_pipe) => Ok(()),
        done => done,
    }
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

/// The task-store of a `longhaul dev`, which may be running.
async fn open(data: &Path) -> anyhow::Result<TaskStore> {
    let file = data.join("longhaul.db");
    if !file.is_file() {
        return Err(Wrong(format!("--data {}: there is no longhaul.db in it", data.display())).into());
    }
    let keys = Keys::read(&data.join("seal.key"))?;
    let config = longhaul_taskstore::Config {
        database_url: format!("sqlite:{}", file.display()),
        ..longhaul_taskstore::Config::default()
    };
    TaskStore::build(config, Arc::new(LocalBus::alone()), keys.ring()).await
}

/// The chains that are asked for.
async fn chains(control: &dyn Control, tenant: Option<&str>) -> anyhow::Result<Vec<AuditChain>> {
    let mut chains: Vec<AuditChain> = Vec::new();
    if let Some(tenant) = tenant {
        chains.extend(chain(control, &TenantId::new(tenant)).await?);
        return Ok(chains);
    }
    loop {
        let last = chains.last().map(|chain| chain.tenant.clone());
        let mut page = control.audit_chains(last.as_ref()).await?;
        page.retain(|chain| Some(&chain.tenant) != last.as_ref());
        if page.is_empty() {
            return Ok(chains);
        }
        chains.append(&mut page);
    }
}

/// A tenant's chain, if it has one.
async fn chain(control: &dyn Control, tenant: &TenantId) -> Result<Option<AuditChain>, Error> {
    Ok(control.audit_chains(Some(tenant)).await?.into_iter().next().filter(|chain| chain.tenant == *tenant))
}

fn range(tenant: &TenantId, after: u64, since: Option<Timestamp>) -> AuditRange {
    AuditRange { tenant: tenant.clone(), after, since }
}

fn named(tenant: &TenantId) -> String {
    match tenant.as_str() {
        "" => "the installation".to_owned(),
        tenant => format!("tenant {tenant:?}"),
    }
}

async fn verify(
    control: &dyn Control,
    which: &Which,
    noted: Option<Noted>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let chains = chains(control, which.tenant.as_deref()).await?;
    if let (None, Some(tenant)) = (chains.first(), &which.tenant) {
        anyhow::ensure!(
            noted.is_none(),
            "{} has no audit log, and a row of it was noted",
            named(&TenantId::new(&**tenant))
        );
        writeln!(out, "{}: nothing was sealed yet", named(&TenantId::new(&**tenant)))?;
    }
    let mut first = None;
    for chain in chains {
        let name = named(&chain.tenant);
        match prove(control, &chain.tenant, which, noted).await? {
            Ok(Proved { rows: 0, last }) => {
                writeln!(out, "{name}: no rows of that time; last row {}:{}", last.seq, last.hash)?
            }
            Ok(Proved { rows, last }) => {
                let from = last.seq + 1 - rows;
                writeln!(
                    out,
                    "{name}: rows {from} to {} are as they were sealed; last row {}:{}",
                    last.seq, last.seq, last.hash
                )?;
            }
            Err(broken) => {
                writeln!(out, "{name}: BROKEN: {broken}")?;
                first = first.or(Some(format!("{name}: {broken}")));
            }
        }
    }
    out.flush()?;
    first.map_or(Ok(()), |broken| Err(anyhow::anyhow!("the audit log is broken: {broken}")))
}

/// What was proved of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Proved {
    rows: u64,
    last: Link,
}

/// Goes along a chain, from what is believed of it to its end.
async fn prove(
    control: &dyn Control,
    tenant: &TenantId,
    which: &Which,
    noted: Option<Noted>,
) -> anyhow::Result<Result<Proved, Broken>> {
    let mut looks = 0;
    loop {
        looks += 1;
        let before = chain(control, tenant).await?.context("the chain is gone")?;
        if let Some(Noted(noted)) = noted {
            anyhow::ensure!(
                noted.seq >= before.anchor.seq,
                "row {} is past its retention and gone: note one that is not, such as {}:{}",
                noted.seq,
                before.head.seq,
                before.head.hash
            );
        }
        let proved = walk(control, &before, which, noted).await?;
        let after = chain(control, tenant).await?.context("the chain is gone")?;
        match proved {
            // Its oldest rows have gone meanwhile, as they should.
            Err(_) if after.anchor != before.anchor && looks < LOOKS_MAX => {}
            Ok(Proved { last, .. }) if last.seq > after.head.seq => return Ok(Err(Broken::Extra(after.head.seq + 1))),
            proved => return Ok(proved),
        }
    }
}

async fn walk(
    control: &dyn Control,
    chain: &AuditChain,
    which: &Which,
    noted: Option<Noted>,
) -> Result<Result<Proved, Broken>, Error> {
    let tenant = &chain.tenant;
    // Rows before the believed one are read too: there should be none.
    let (start, mut after) = match which.since {
        None => (chain.anchor, 0),
        Some(since) => match believed(control, chain, since).await? {
            Ok(start) => (start, start.seq),
            Err(broken) => return Ok(Err(broken)),
        },
    };
    let expected = [Some(chain.head), noted.map(|Noted(link)| link)];
    let missed =
        |link: Link| expected.into_iter().flatten().any(|known| known.seq == link.seq && known.hash != link.hash);
    if missed(start) {
        return Ok(Err(Broken::Other(start.seq)));
    }
    let mut walk = Walk::behind(start);
    let mut seen: Option<Sealed> = None;
    let is_early = |row: &Sealed| which.until.is_none_or(|until| row.sealed_at <= until);
    'pages: loop {
        let mut page = control.audit_rows(range(tenant, after, None)).await?;
        // Pages overlap by a row, so that nothing can hide between them.
        if let Some(last) = &seen {
            match page.first() {
                Some(first) if first == last => drop(page.remove(0)),
                Some(_) => return Ok(Err(Broken::Changed(last.seq))),
                None => return Ok(Err(Broken::Missing(last.seq))),
            }
        }
        if page.is_empty() {
            break;
        }
        for row in page {
            if !is_early(&row) {
                break 'pages;
            }
            if let Err(broken) = walk.step(tenant, &row) {
                return Ok(Err(broken));
            }
            if missed(row.link()) {
                return Ok(Err(Broken::Other(row.seq)));
            }
            after = row.seq - 1;
            seen = Some(row);
        }
    }
    let last = walk.last();
    let cut = expected.into_iter().flatten().any(|known| known.seq > last.seq);
    // What was sealed later than asked for need not be looked at.
    if cut && which.until.is_none() {
        return Ok(Err(Broken::Missing(last.seq + 1)));
    }
    Ok(Ok(Proved { rows: last.seq - start.seq, last }))
}

/// The row before the first that was sealed at this moment or later.
async fn believed(control: &dyn Control, chain: &AuditChain, since: Timestamp) -> Result<Result<Link, Broken>, Error> {
    let first = control.audit_rows(range(&chain.tenant, 0, Some(since))).await?.into_iter().next();
    let Some(first) = first else { return Ok(Ok(chain.head)) };
    if first.seq <= chain.anchor.seq + 1 {
        return Ok(Ok(chain.anchor));
    }
    let before = control.audit_rows(range(&chain.tenant, first.seq - 2, None)).await?.into_iter().next();
    Ok(before.filter(|row| row.seq == first.seq - 1).map(|row| row.link()).ok_or(Broken::Missing(first.seq - 1)))
}

async fn export(control: &dyn Control, which: &Which, out: &mut impl Write) -> anyhow::Result<()> {
    for chain in chains(control, which.tenant.as_deref()).await? {
        // Nothing is sealed before it happens, so no row that is wanted is left out.
        let start = match which.since {
            None => chain.anchor,
            Some(since) => believed(control, &chain, since).await?.unwrap_or(chain.anchor),
        };
        let (mut after, mut prev) = (start.seq, start.hash);
        loop {
            let page = control.audit_rows(range(&chain.tenant, after, None)).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            for row in page {
                let at = row.entry.at;
                let hash = row.hash;
                if which.since.is_none_or(|since| at >= since) && which.until.is_none_or(|until| at <= until) {
                    serde_json::to_writer(&mut *out, &json(row, prev)).map_err(std::io::Error::from)?;
                    out.write_all(b"\n")?;
                }
                prev = hash;
            }
        }
    }
    Ok(())
}

/// A row as a line; docs/OPERATING.md has the names.
fn json(row: Sealed, prev: Hash) -> Value {
    let Sealed { entry, seq, sealed_at, hash } = row;
    let Entry { id, at, event, tenant, owner, tool, task, version, reason, subject, trace_id, times } = entry;
    let mut line = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            line.insert(name.to_owned(), value);
        }
    };
    put("time", Some(rfc3339(at).into()));
    put("event", Some(event.into()));
    put("tenant", Some(tenant.as_str().into()));
    let caller = owner.as_deref().map(|owner| Principal::from_owner(tenant, owner).ok_or(owner));
    match caller {
        Some(Ok(Principal { caller: Caller::Agent(agent), .. })) => put("agent", Some(agent.into())),
        Some(Ok(Principal { caller: Caller::Person { app, person }, .. })) => {
            put("app", Some(app.into()));
            put("person", Some(person.into()));
        }
        Some(Err(owner)) => put("owner", Some(owner.into())),
        None => {}
    }
    put("tool", tool.map(Value::from));
    put("task", task.map(Value::from));
    put("version", version.map(Value::from));
    put("reason", reason.map(Value::from));
    put("subject", subject.map(Value::from));
    put("trace_id", trace_id.map(Value::from));
    put("times", Some(times.into()));
    put("id", Some(id.into()));
    put("seq", Some(seq.into()));
    put("sealed", Some(rfc3339(sealed_at).into()));
    put("prev", Some(prev.to_string().into()));
    put("hash", Some(hash.to_string().into()));
    Value::Object(line)
}

fn rfc3339(moment: Timestamp) -> String {
    let moment = DateTime::from_timestamp_micros(moment.as_micros()).unwrap_or(DateTime::<Utc>::MAX_UTC);
    moment.to_rfc3339_opts(SecondsFormat::Micros, true)
}
