//! `[[budgets]]` and `longhaul budget status`.

use std::collections::BTreeMap;
use std::io::Write;

use longhaul_core::budget::spelt;
use longhaul_core::{Amount, Limit, Principal, TenantId, Window};
use longhaul_policy::budget::{BudgetRule, BudgetRules, BudgetScope};
use longhaul_rpc::client::ControlClient;
use longhaul_rpc::{BUDGETS_PAGE, BudgetState, Control};
use serde::{Deserialize, Serialize};

use crate::admission::ToolConfig;
use crate::compose::{Parts, Site};
use crate::config::{Config, Wrong};

/// Pages of budgets that are printed at most.
const PAGES_MAX: usize = 1000;
const MICRO_PER_USD: f64 = 1e6;

/// `[[budgets]]`: so much a window for each holder.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    /// Its name, unlike any other; shown in metrics and by `longhaul budget status`.
    pub name: String,
    /// Who shares it: `tenant`, `principal` (each caller has its own), or `tool` (each tool of each tenant has its own).
    pub scope: Scope,
    /// How long it lasts: `minute`, `hour`, `day` or `month`, from the beginning of the calendar's, in UTC.
    pub window: WindowName,
    /// How many units there are in a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<u64>,
    /// How much money there is in a window, in US dollars. A budget of units and money is used up when either is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// The tenants it is for; `*` stands for any text. All, if it is not set.
    #[serde(default = "all")]
    pub tenants: Vec<String>,
    /// The tenants, callers (an agent's name, or `app/person`) or tools it is for, as its scope says. All, if it is not set.
    #[serde(default = "all")]
    pub r#match: Vec<String>,
}

/// Who shares a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// A tenant.
    Tenant,
    /// A caller.
    Principal,
    /// A tool.
    Tool,
}

/// How long a budget lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowName {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A month.
    Month,
}

fn all() -> Vec<String> {
    vec!["*".to_owned()]
}

fn micro(key: &str, usd: f64) -> Result<u64, Wrong> {
    let micro = (usd * MICRO_PER_USD).round();
    // 2^53: up to there every number of millionths is told apart.
    match (0.0..=9_007_199_254_740_992.0).contains(&micro) {
        true => Ok(micro as u64),
        false => Err(Wrong(format!("{key} is not an amount of money"))),
    }
}

/// The budgets of a config.
pub(crate) fn rules(budgets: &[BudgetConfig], tools: &BTreeMap<String, ToolConfig>) -> Result<BudgetRules, Wrong> {
    let rule = |budget: &BudgetConfig| {
        let usd = budget.usd.map(|usd| micro(&format!("budgets: usd of {:?}", budget.name), usd)).transpose()?;
        Ok(BudgetRule {
            name: budget.name.clone(),
            scope: match budget.scope {
                Scope::Tenant => BudgetScope::Tenant,
                Scope::Principal => BudgetScope::Principal,
                Scope::Tool => BudgetScope::Tool,
            },
            tenants: budget.tenants.clone(),
            holders: budget.r#match.clone(),
            window: match budget.window {
                WindowName::Minute => Window::Minute,
                WindowName::Hour => Window::Hour,
                WindowName::Day => Window::Day,
                WindowName::Month => Window::Month,
            },
            limit: Limit { units: budget.units, micro_usd: usd },
        })
    };
    let price = |(name, tool): (&String, &ToolConfig)| {
        let micro_usd = micro(&format!("tools.{name}.price_usd"), tool.price_usd)?;
        Ok((name.clone(), Amount { units: tool.price_units, micro_usd }))
    };
    let rules = BudgetRules {
        rules: budgets.iter().map(rule).collect::<Result<_, Wrong>>()?,
        prices: tools.iter().map(price).collect::<Result<_, Wrong>>()?,
    };
    rules.check().map_err(|bad| Wrong(format!("budgets: {bad}")))?;
    Ok(rules)
}

impl Config {
    /// What calls are charged to.
    pub(crate) fn budget_rules(&self) -> Result<BudgetRules, Wrong> {
        rules(&self.budgets, &self.tools)
    }
}

/// Plays `longhaul budget status`.
pub(crate) async fn status(parts: Parts) -> anyhow::Result<()> {
    let control = ControlClient::new(&Site::new(parts.config)?.target())?;
    let mut out = std::io::stdout().lock();
    let mut after = None;
    let mut is_first = true;
    for _ in 0..PAGES_MAX {
        let page = control.budgets(after.take()).await?;
        for state in &page {
            if std::mem::take(&mut is_first) {
                writeln!(out, "BUDGET\tTENANT\tHOLDER\tUNITS\tUSD\tRESETS")?;
            }
            line(&mut out, state)?;
        }
        if page.len() < BUDGETS_PAGE {
            break;
        }
        after = page.into_iter().next_back().map(|state| state.key);
    }
    if is_first {
        writeln!(out, "nobody has drawn on a budget in its present window")?;
    }
    Ok(())
}

/// How a budget stands: taken and limit, what gateways hold unused included.
fn line(out: &mut impl Write, state: &BudgetState) -> std::io::Result<()> {
    let BudgetState { key, ends_at, limit, taken, .. } = state;
    let usd = |micro: u64| format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
    let of = |taken: String, limit: Option<String>| format!("{taken}/{}", limit.unwrap_or_else(|| "-".into()));
    let holder = match Principal::from_owner(TenantId::new(&*key.tenant), &key.holder) {
        Some(Principal { caller: longhaul_core::Caller::Agent(agent), .. }) => agent,
        Some(Principal { caller: longhaul_core::Caller::Person { app, person }, .. }) => format!("{app}/{person}"),
        None if key.holder.is_empty() => "-".into(),
        None => key.holder.clone(),
    };
    writeln!(
        out,
        "{}\t{}\t{}\t{}\t{}\t{}",
        // Names of strangers: what steers a terminal is not printed.
        key.budget.escape_debug(),
        key.tenant.escape_debug(),
        holder.escape_debug(),
        of(taken.units.to_string(), limit.units.map(|units| units.to_string())),
        of(usd(taken.micro_usd), limit.micro_usd.map(usd)),
        spelt(*ends_at),
    )
}

#[cfg(test)]
mod tests {
    use longhaul_core::{BudgetKey, Timestamp};

    use super::*;

    #[test]
    fn money_is_read_in_dollars_and_kept_in_millionths() {
        let toml = r#"
            [[budgets]]
            name = "people"
            scope = "principal"
            window = "month"
            usd = 12.5
            match = ["desk/*"]
            [tools.ask_agent]
            price_usd = 0.1
            [tools.echo]
            price_units = 0
        "#;
        #[derive(Deserialize)]
        struct Part {
            budgets: Vec<BudgetConfig>,
            tools: BTreeMap<String, ToolConfig>,
        }
        let part: Part = toml::from_str(toml).unwrap();
        let rules = rules(&part.budgets, &part.tools).unwrap();
        let [rule] = rules.rules.as_slice() else { panic!("{rules:?}") };
        assert_eq!(rule.limit, Limit { units: None, micro_usd: Some(12_500_000) });
        assert_eq!((&*rule.tenants, &*rule.holders), (&["*".to_owned()][..], &["desk/*".to_owned()][..]));
        assert_eq!(rules.prices["ask_agent"], Amount { units: 1, micro_usd: 100_000 });
        assert_eq!(rules.prices["echo"], Amount::ZERO);
        for usd in [-0.01, f64::NAN, f64::INFINITY, 1e18] {
            let bad = BudgetConfig { usd: Some(usd), ..part.budgets[0].clone() };
            assert!(super::rules(&[bad], &BTreeMap::new()).is_err(), "{usd}");
        }
        let endless = BudgetConfig { usd: None, ..part.budgets[0].clone() };
        assert!(super::rules(&[endless], &BTreeMap::new()).unwrap_err().to_string().contains("people"));
    }

    #[test]
    fn a_line_tells_what_is_taken_and_when_it_begins_anew() {
        let key = BudgetKey { budget: "b".into(), tenant: "a\u{1b}[31m".into(), holder: "person:4:desk:1:p".into() };
        let state = BudgetState {
            key,
            starts_at: Timestamp::from_micros(0),
            ends_at: Timestamp::from_micros(60_000_000),
            limit: Limit { units: Some(100), micro_usd: None },
            taken: Amount { units: 7, micro_usd: 1_050_000 },
        };
        let mut out = Vec::new();
        line(&mut out, &state).unwrap();
        let line = String::from_utf8(out).unwrap();
        assert_eq!(line, "b\ta\\u{1b}[31m\tdesk/p\t7/100\t1.050000/-\t1970-01-01T00:01:00Z\n");
    }
}
