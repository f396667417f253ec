//! The rows: what the product does, beside the floor under it, in turns.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::client::{Http, Session};
use crate::floors::{ECHO_BODY, Floor, Floors};
use crate::measure::{self, Sample, median};
use crate::processes::Meter;
use crate::roles::Roles;
use crate::sql::{Caller, mixed};
use crate::tasks;
use crate::waiting::{connect_modern, open_sessions};

/// Before it is measured, everything runs for this long.
pub const WARM_UP: Duration = Duration::from_millis(300);
/// Clients that store the tasks of the prefill, at least.
const FILLERS: usize = 64;
/// Open tasks that are asked for.
const OPEN_TASKS: usize = 64;
/// So long that they are open while they are asked for; they are cancelled after it.
const OPEN_TASK_SECONDS: f64 = 3600.0;

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What is done.
    pub name: String,
    /// By how many clients at once.
    pub clients: usize,
    /// How often, a second.
    pub rate: f64,
    /// How long half of it takes at most.
    pub p50_us: u64,
    /// How long 99 of 100 take at most.
    pub p99_us: u64,
    /// The floor's rate.
    pub floor: Option<f64>,
    /// Rate by floor.
    pub ratio: Option<f64>,
    /// Which floor.
    pub floor_name: Option<&'static str>,
    /// CPU time of each process by operation, in microseconds.
    pub cpu_us: BTreeMap<&'static str, f64>,
}

/// How long, how often, by how many.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The length of one run.
    pub length: Duration,
    /// Runs of each kind.
    pub rounds: usize,
    /// The numbers of clients.
    pub clients: Vec<usize>,
    /// Only rows whose names contain this.
    pub only: String,
    /// Tasks stored before anything is measured, in the product and in the floor's database.
    pub prefill: usize,
}

impl Plan {
    /// So many that the prefill is quick, and that each row has its own.
    pub fn callers(&self) -> usize {
        self.clients.iter().copied().fold(FILLERS, usize::max)
    }
}

/// The callers of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    /// Sessions of 2025-11-25.
    Sessions,
    /// 2026-07-28.
    Modern,
}

const ERAS: [Era; 2] = [Era::Sessions, Era::Modern];

/// A row's work.
#[derive(Debug, Clone, Copy)]
enum Work {
    Inline,
    GetEnded,
    GetOpen,
    CreateToResult,
    Create,
}

const WORKS: [Work; 5] = [Work::Inline, Work::GetEnded, Work::GetOpen, Work::CreateToResult, Work::Create];

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline echo",
            Self::GetEnded => "tasks/get, ended",
            Self::GetOpen => "tasks/get, open",
            Self::CreateToResult => "create → result",
            // The runner goes on with the tasks meanwhile.
            Self::Create => "create acknowledged",
        }
    }

    fn floor(self) -> Floor {
        match self {
            Self::Inline => Floor::AxumTonic,
            // It never changes again, so nothing but the network is in the way.
            Self::GetEnded => Floor::Axum,
            Self::GetOpen => Floor::Select,
            Self::CreateToResult => Floor::WholeTask,
            Self::Create => Floor::Insert,
        }
    }
}

/// Callers of the product, and tasks to ask for.
pub struct Product<'a> {
    roles: &'a mut Roles,
    sessions: Vec<Session>,
    modern: Vec<Session>,
    ended: Vec<String>,
    open: Vec<String>,
    turn: Cell<u64>,
}

impl<'a> Product<'a> {
    /// Connects, and stores tasks.
    pub async fn prepare(roles: &'a mut Roles, plan: &Plan) -> Result<Self> {
        let mut sessions = open_sessions(roles.address, plan.callers()).await?;
        let each = plan.prefill.div_ceil(sessions.len());
        let filling = sessions.iter_mut().map(|session| async move {
            let mut ids = Vec::with_capacity(each);
            for _ in 0..each {
                ids.push(tasks::create_and_wait(session).await?);
            }
            anyhow::Ok(ids)
        });
        let ended = futures::future::try_join_all(filling).await?.concat();
        let modern = connect_modern(roles.address, plan.callers()).await?;
        Ok(Self { roles, sessions, modern, ended, open: Vec::new(), turn: Cell::new(0) })
    }

    async fn run(&mut self, work: Work, era: Era, clients: usize, length: Duration) -> Result<Sample> {
        let callers = match era {
            Era::Sessions => &mut self.sessions[..clients],
            Era::Modern => &mut self.modern[..clients],
        };
        let (ended, open, turn) = (&self.ended, &self.open, &self.turn);
        let pick = |ids: &[String]| {
            turn.set(turn.get() + 1);
            mixed(turn.get()) as usize % ids.len()
        };
        let sample = match work {
            Work::Inline => measure::run(callers, length, tasks::inline).await,
            Work::GetEnded => {
                let get =
                    async |session: &mut Session| tasks::get(session, &ended[pick(ended)], "completed").await.map(drop);
                measure::run(callers, length, get).await
            }
            Work::GetOpen => {
                let get =
                    async |session: &mut Session| tasks::get(session, &open[pick(open)], "working").await.map(drop);
                measure::run(callers, length, get).await
            }
            Work::CreateToResult => {
                let whole = async |session: &mut Session| tasks::create_and_wait(session).await.map(drop);
                measure::run(callers, length, whole).await
            }
            Work::Create => {
                let create = async |session: &mut Session| tasks::create(session).await.map(drop);
                let sample = measure::run(callers, length, create).await;
                if sample.is_ok() {
                    // Tasks are claimed in the order of their creation: with this one, those before it are done.
                    tasks::create_and_wait(&mut self.sessions[0]).await?;
                }
                sample
            }
        };
        self.roles.check()?;
        sample.with_context(|| format!("{} at {clients}", work.name()))
    }

    /// What the work needs to be there.
    async fn before(&mut self, work: Work) -> Result<()> {
        if let Work::GetOpen = work {
            for _ in 0..OPEN_TASKS {
                self.open.push(tasks::create_countdown(&mut self.sessions[0], OPEN_TASK_SECONDS).await?);
            }
        }
        Ok(())
    }

    async fn after(&mut self, work: Work) -> Result<()> {
        if let Work::GetOpen = work {
            for id in self.open.drain(..) {
                tasks::cancel(&mut self.sessions[0], &id).await?;
            }
        }
        Ok(())
    }
}

impl Floors {
    async fn run(&mut self, floor: Floor, clients: usize, length: Duration) -> Result<Sample> {
        let turn = &self.turn;
        let sample = match floor {
            Floor::Axum | Floor::AxumTonic => {
                let callers = if floor == Floor::Axum { &mut self.echo } else { &mut self.hop };
                measure::run(&mut callers[..clients], length, async |http: &mut Http| http.echo(ECHO_BODY).await).await
            }
            Floor::Insert => measure::run(&mut self.sql[..clients], length, Caller::insert).await,
            Floor::WholeTask => measure::run(&mut self.sql[..clients], length, Caller::whole_task).await,
            Floor::Select => {
                let select = async |caller: &mut Caller| {
                    turn.set(turn.get() + 1);
                    caller.select(turn.get()).await
                };
                measure::run(&mut self.sql[..clients], length, select).await
            }
        };
        self.check()?;
        sample.with_context(|| format!("{} at {clients}", floor.name()))
    }
}

/// All rows, each after its floor's own. Without a product, only the floors'.
pub async fn all(
    plan: &Plan,
    floors: &mut Floors,
    mut product: Option<Product<'_>>,
    meters: &[Meter],
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for work in WORKS.into_iter().filter(|work| work.name().contains(&plan.only)) {
        if let Some(product) = &mut product {
            product.before(work).await?;
        }
        for &clients in &plan.clients {
            let mut floor_runs = Vec::new();
            let mut runs = ERAS.map(|era| (era, Vec::new(), Costs::new(meters)));
            for round in 0..=plan.rounds {
                // The first round warms both up, and counts for nothing.
                let length = if round == 0 { WARM_UP } else { plan.length };
                let floor_run = floors.run(work.floor(), clients, length).await?;
                if round > 0 {
                    floor_runs.push(floor_run);
                }
                let Some(product) = &mut product else { continue };
                for (era, runs, costs) in &mut runs {
                    costs.start();
                    let run = product.run(work, *era, clients, length).await?;
                    if round > 0 {
                        costs.stop();
                        runs.push(run);
                    }
                }
            }
            let floor = median(&floor_runs);
            rows.push(Row::new(work.floor().name(), clients, &floor));
            for (era, runs, costs) in runs.iter().filter(|(_, runs, _)| !runs.is_empty()) {
                let sample = median(runs);
                let name = match era {
                    Era::Sessions => format!("{}, 2025", work.name()),
                    Era::Modern => format!("{}, 2026", work.name()),
                };
                let mut row = Row::new(&name, clients, &sample);
                row.floor = Some(floor.rate);
                row.floor_name = Some(work.floor().name());
                row.ratio = Some(sample.rate / floor.rate);
                row.cpu_us = costs.per_operation(sample.operations);
                rows.push(row);
            }
            eprintln!("{} at {clients}: done", work.name());
        }
        if let Some(product) = &mut product {
            product.after(work).await?;
        }
    }
    Ok(rows)
}

impl Row {
    /// What was measured, beside nothing.
    pub fn new(name: &str, clients: usize, sample: &Sample) -> Self {
        Self {
            name: name.to_owned(),
            clients,
            rate: sample.rate,
            p50_us: sample.p50_us,
            p99_us: sample.p99_us,
            floor: None,
            ratio: None,
            floor_name: None,
            cpu_us: BTreeMap::new(),
        }
    }
}

/// What processes cost, over several runs.
struct Costs<'a> {
    meters: &'a [Meter],
    started: Vec<Duration>,
    used: Vec<Duration>,
}

impl<'a> Costs<'a> {
    fn new(meters: &'a [Meter]) -> Self {
        Self { meters, started: Vec::new(), used: vec![Duration::ZERO; meters.len()] }
    }

    fn start(&mut self) {
        self.started = self.meters.iter().map(Meter::used).collect();
    }

    fn stop(&mut self) {
        for ((used, started), meter) in self.used.iter_mut().zip(&self.started).zip(self.meters) {
            *used += meter.used().saturating_sub(*started);
        }
    }

    fn per_operation(&self, operations: usize) -> BTreeMap<&'static str, f64> {
        let cost = |used: &Duration| used.as_secs_f64() * 1e6 / operations.max(1) as f64;
        self.meters.iter().map(|meter| meter.name).zip(self.used.iter().map(cost)).collect()
    }
}
