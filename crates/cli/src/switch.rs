//! `longhaul switch`: where calls are switched off.

use std::io::Write;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use longhaul_core::{Caller, Scope, TenantId};
use longhaul_rpc::{Control, SWITCHES_MAX, Stopped, Switch, Switched, wrong_switch};

use crate::config::Wrong;
use crate::credentials::moment;

/// How long a gateway may still let calls in that were switched off, at worst: without Redis.
const EFFECTIVE: Duration = Duration::from_secs(5);
/// Batches of running tasks that are stopped.
const BATCHES_MAX: u32 = 10_000;

/// What to do with switches.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Switches calls off: from now on they are refused.
    Off {
        #[command(flatten)]
        which: Which,
        /// Why. Callers are shown it.
        #[arg(long)]
        why: String,
        /// Cancels the tasks of these calls that have not ended, too.
        #[arg(long)]
        stop_running: bool,
    },
    /// Switches calls on again: they are no longer refused, unless another switch is against them.
    On {
        #[command(flatten)]
        which: Which,
        /// Why, for the audit log.
        #[arg(long)]
        why: String,
    },
    /// Prints what is switched off.
    Status,
}

/// Which calls. Each part narrows them further.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Which {
    /// All calls of everyone.
    #[arg(long, conflicts_with_all = ["tenant", "tool", "principal", "agent", "app", "person"])]
    everything: bool,
    /// Those of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Those of this tool.
    #[arg(long)]
    tool: Option<String>,
    /// Those by this agent, or this `app/person`.
    #[arg(long, conflicts_with_all = ["agent", "app", "person"])]
    principal: Option<String>,
    /// Those by this agent, whatever its name.
    #[arg(long, conflicts_with_all = ["app", "person"])]
    agent: Option<String>,
    /// Those by a person in this app.
    #[arg(long, requires = "person")]
    app: Option<String>,
    /// Those by this person in the app.
    #[arg(long, requires = "app")]
    person: Option<String>,
}

impl Which {
    fn scope(self) -> Scope {
        let Self { everything: _, tenant, tool, principal, agent, app, person } = self;
        let principal = principal.map(|text| match text.rsplit_once('/') {
            Some((app, person)) => Caller::Person { app: app.to_owned(), person: person.to_owned() },
            None => Caller::Agent(text),
        });
        let named = app.zip(person).map(|(app, person)| Caller::Person { app, person });
        let caller = principal.or(agent.map(Caller::Agent)).or(named);
        Scope { tenant: tenant.map(TenantId::new), tool, caller }
    }
}

/// Does it, and says what was done.
pub(crate) async fn run(verb: Verb, control: &dyn Control, out: &mut impl Write) -> anyhow::Result<()> {
    match verb {
        Verb::Off { which, why, stop_running } => {
            let scope = which.scope();
            match set(control, &scope, true, &why).await? {
                Switched::Changed => writeln!(out, "switched OFF: {scope}. These calls are refused now.")?,
                Switched::Same => writeln!(out, "{scope} was switched OFF before, for the same reason.")?,
                Switched::Full => anyhow::bail!("{SWITCHES_MAX} scopes are off: switch some on, or a wider one off"),
            }
            if stop_running {
                let mut stopped = stop(control, &scope).await?;
                writeln!(out, "{stopped} tasks stopped; looking again in {} s for later ones", EFFECTIVE.as_secs())?;
                out.flush()?;
                // Until then a gateway that has not heard of the switch may have let some in.
                tokio::time::sleep(EFFECTIVE).await;
                stopped += stop(control, &scope).await?;
                writeln!(out, "{stopped} tasks stopped in all")?;
            }
        }
        Verb::On { which, why } => {
            let scope = which.scope();
            match set(control, &scope, false, &why).await? {
                Switched::Changed => {
                    writeln!(out, "switched ON: {scope}. These calls are no longer refused by this switch.")?
                }
                Switched::Same | Switched::Full => writeln!(out, "{scope} was not switched off.")?,
            }
            let left = off(control).await?;
            if !left.is_empty() {
                writeln!(out, "still OFF:")?;
                left.iter().try_for_each(|switch| line(switch, out))?;
            }
        }
        Verb::Status => {
            let off = off(control).await?;
            if off.is_empty() {
                writeln!(out, "nothing is switched off")?;
            }
            off.iter().try_for_each(|switch| line(switch, out))?;
        }
    }
    Ok(out.flush()?)
}

async fn set(control: &dyn Control, scope: &Scope, off: bool, why: &str) -> anyhow::Result<Switched> {
    if let Some(wrong) = wrong_switch(scope, why) {
        return Err(Wrong(wrong.into()).into());
    }
    control.set_switch(scope, off, why).await.context("it is not known whether the switch was set: do it again")
}

async fn stop(control: &dyn Control, scope: &Scope) -> anyhow::Result<u64> {
    let mut all = 0;
    for _ in 0..BATCHES_MAX {
        let stopped = control.stop_running(scope).await;
        let stopped = stopped.with_context(|| format!("{all} tasks were stopped, perhaps more: do it again"))?;
        let Stopped { stopped, more } = stopped;
        all += stopped;
        if !more {
            return Ok(all);
        }
    }
    anyhow::bail!("{all} tasks were stopped, and there are more: do it again")
}

/// What is switched off, in the order in which it was.
async fn off(control: &dyn Control) -> anyhow::Result<Vec<Switch>> {
    let (mut since, mut all) = (0, Vec::new());
    loop {
        let page = control.switch_changes(since).await.context("the task-store")?.changes;
        let Some(last) = page.last() else { return Ok(all) };
        since = last.number;
        all.extend(page.into_iter().filter(|switch| switch.off));
    }
}

fn line(switch: &Switch, out: &mut impl Write) -> std::io::Result<()> {
    let Switch { scope, why, changed_at, .. } = switch;
    writeln!(out, "OFF since {}: {scope}: {why}", moment(*changed_at))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        verb: Verb,
    }

    fn scope(arguments: &[&str]) -> Option<Scope> {
        let line = ["switch", "off", "--why", "x"].iter().chain(arguments);
        match Line::try_parse_from(line).ok()?.verb {
            Verb::Off { which, .. } => Some(which.scope()),
            Verb::On { .. } | Verb::Status => None,
        }
    }

    #[test]
    fn a_scope_is_what_its_parts_say_and_everything_has_to_be_said() {
        let person = |app: &str, person: &str| Some(Caller::Person { app: app.into(), person: person.into() });
        let by = |caller| Some(Scope { caller, ..Scope::default() });
        assert_eq!(scope(&["--everything"]), Some(Scope::default()));
        assert_eq!(
            scope(&["--tenant", "t", "--tool", "x", "--principal", "a"]),
            Some(Scope {
                tenant: Some(TenantId::new("t")),
                tool: Some("x".into()),
                caller: Some(Caller::Agent("a".into())),
            })
        );
        assert_eq!(scope(&["--principal", "app/ann"]), by(person("app", "ann")));
        // A client id may be a URL.
        assert_eq!(scope(&["--principal", "https://a.example/b/ann"]), by(person("https://a.example/b", "ann")));
        assert_eq!(scope(&["--agent", "a/b"]), by(Some(Caller::Agent("a/b".into()))));
        assert_eq!(scope(&["--app", "a", "--person", "b/c"]), by(person("a", "b/c")));
        for bad in [
            &[][..],
            &["--everything", "--tool", "x"],
            &["--app", "a"],
            &["--person", "b"],
            &["--agent", "a", "--principal", "b"],
            &["--agent", "a", "--app", "a", "--person", "b"],
        ] {
            assert_eq!(scope(bad), None, "{bad:?}");
        }
        assert!(Line::try_parse_from(["switch", "off", "--everything"]).is_err(), "why?");
        assert!(Line::try_parse_from(["switch", "on", "--everything"]).is_err(), "why?");
    }
}
