//! What the admission chain costs: the same calls at a gateway with rules and at one without, in turns; and the chain alone.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use longhaul_core::{Caller, Principal, Target, TenantId};
use longhaul_policy::cedar::{Policies, Tags};
use longhaul_policy::data::DataPolicies;
use longhaul_policy::guardrails::{Guardrails, GuardrailsConfig};
use longhaul_policy::rates::{Limits, Rates, RatesConfig};
use longhaul_policy::{Aim, Call, Chain, Checks, Source};
use longhaul_taskstore::SystemClock;

use crate::client::Session;
use crate::measure::{self, Sample, median};
use crate::roles::Roles;
use crate::rows::{Plan, Row, WARM_UP};
use crate::tasks;
use crate::waiting::{connect_modern, open_sessions};

/// Cedar policies in force.
const POLICIES: usize = 100;
/// A rate that is counted and never reached.
const RATE: &str = "1000000/s";
const DEPTH_MAX: usize = 32;
const DATA: &str = r#"
[[policies]]
name = "personal data and secrets"
detect = ["card", "iban", "national_id", "email", "secret"]
patterns = ["(?i)project [a-z]+"]
action = "redact"
"#;

/// What is done at either gateway.
#[derive(Debug, Clone, Copy)]
enum Work {
    Inline,
    CreateToResult,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline echo, chain on",
            Self::CreateToResult => "create → result, chain on",
        }
    }

    async fn run(self, callers: &mut [Session], plan: &Plan, round: usize) -> Result<Sample> {
        // The first round warms both up, and counts for nothing.
        let length = if round == 0 { WARM_UP } else { plan.length };
        match self {
            Self::Inline => measure::run(callers, length, tasks::inline).await,
            Self::CreateToResult => {
                let whole = async |session: &mut Session| tasks::create_and_wait(session).await.map(drop);
                measure::run(callers, length, whole).await
            }
        }
    }
}

/// The rows: with the chain, by the rate without.
pub async fn all(plan: &Plan, roles: &mut Roles, longhaul: &Path) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    write_rules(folder.path())?;
    let mut rows = Vec::new();
    let alone = "the chain alone, 100 policies";
    if alone.contains(&plan.only) {
        rows.push(Row::new(alone, 1, &chain_alone(folder.path(), plan).await?));
        eprintln!("{alone}: done");
    }
    let works: Vec<Work> =
        [Work::Inline, Work::CreateToResult].into_iter().filter(|work| work.name().contains(&plan.only)).collect();
    if works.is_empty() {
        return Ok(rows);
    }
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let rules = [
        ("LONGHAUL_POLICY_DIR", path("policies")),
        ("LONGHAUL_DATA_POLICIES_FILE", path("data.toml")),
        ("LONGHAUL_GUARDRAILS__MAX_DEPTH", DEPTH_MAX.to_string()),
        ("LONGHAUL_RATE_LIMITS__PER_PRINCIPAL", RATE.into()),
        ("LONGHAUL_RATE_LIMITS__CREATES_PER_TENANT", RATE.into()),
    ];
    let (mut guarded, address) = roles.another_gateway(longhaul, &rules).await?;
    let clients = plan.callers();
    let mut eras = [
        ("2025", open_sessions(roles.address, clients).await?, open_sessions(address, clients).await?),
        ("2026", connect_modern(roles.address, clients).await?, connect_modern(address, clients).await?),
    ];
    for work in works {
        for &clients in &plan.clients {
            for (era, without, with) in &mut eras {
                let (mut off, mut on) = (Vec::new(), Vec::new());
                for round in 0..=plan.rounds {
                    let samples = (
                        work.run(&mut without[..clients], plan, round).await?,
                        work.run(&mut with[..clients], plan, round).await?,
                    );
                    if round > 0 {
                        off.push(samples.0);
                        on.push(samples.1);
                    }
                    roles.check()?;
                    guarded.check()?;
                }
                let (off, on) = (median(&off), median(&on));
                let mut row = Row::new(&format!("{}, {era}", work.name()), clients, &on);
                (row.floor, row.floor_name) = (Some(off.rate), Some("the same, chain off"));
                row.ratio = Some(on.rate / off.rate);
                rows.push(row);
            }
            eprintln!("{} at {clients}: done", work.name());
        }
    }
    guarded.kill().await?;
    Ok(rows)
}

/// Half of the policies are for other callers, half are against tools with certain tags, and one lets the benchmark in.
fn write_rules(folder: &Path) -> Result<()> {
    let mut policies = String::from("permit (principal in Tenant::\"bench\", action, resource);\n");
    for nth in 1..POLICIES {
        if nth % 2 == 0 {
            writeln!(policies, "permit (principal == Agent::\"bench/a{nth}\", action, resource == Tool::\"t{nth}\");")?;
        } else {
            writeln!(
                policies,
                "forbid (principal, action, resource is Tool) when {{ resource.tags.contains(\"t{nth}\") }};"
            )?;
        }
    }
    fs::create_dir(folder.join("policies"))?;
    fs::write(folder.join("policies").join("rules.cedar"), policies)?;
    Ok(fs::write(folder.join("data.toml"), DATA)?)
}

/// One decision after another, in this process.
async fn chain_alone(folder: &Path, plan: &Plan) -> Result<Sample> {
    let wrong = |error: String| anyhow::anyhow!(error);
    let rate = || RATE.parse().map(Some).map_err(wrong);
    let calls = Limits { per_principal: rate()?, per_tenant: rate()?, ..Limits::default() };
    let rates = RatesConfig { calls, replicas: 2, ..RatesConfig::default() };
    let guardrails = GuardrailsConfig { depth_max: DEPTH_MAX, ..GuardrailsConfig::default() };
    let policies = Policies::read(&folder.join("policies"), Tags::new(), Arc::new(SystemClock)).map_err(wrong)?;
    let chain = Chain::new(Checks {
        rates: Some(Arc::new(Rates::new(&rates, None).map_err(wrong)?)),
        policies: Some(Arc::new(policies)),
        data: Some(Arc::new(DataPolicies::read(&folder.join("data.toml")).map_err(wrong)?)),
        guardrails: Some(Arc::new(Guardrails::new(guardrails).map_err(wrong)?)),
        ..Checks::default()
    });
    let principal = Principal { tenant: TenantId::new("bench"), caller: Caller::Agent("bench".into()) };
    let call = Call {
        target: Target::Tool("echo".into()),
        arguments: br#"{"text":"hello"}"#.as_slice().into(),
        aim: Aim::Task,
        source: Source::Client,
    };
    let once = async |_: &mut ()| {
        chain.admit(principal.clone(), call.clone()).await.map(drop).context("the chain lets the benchmark in")
    };
    measure::run(&mut [()], WARM_UP, once).await?;
    measure::run(&mut [()], plan.length, once).await
}
