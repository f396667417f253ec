//! Which budgets a call is charged to, and what it costs.

use std::collections::{BTreeMap, HashSet};

use longhaul_core::budget::{AMOUNT_MAX, BUDGET_NAME_BYTES_MAX, BUDGETS_OF_CALL_MAX};
use longhaul_core::{Amount, BudgetKey, Caller, Limit, Principal, Target, Window};

use crate::glob;

/// What a call of a tool costs that has no price of its own.
const PRICE: Amount = Amount { units: 1, micro_usd: 0 };

/// Who shares a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetScope {
    /// All callers of a tenant.
    Tenant,
    /// One caller.
    Principal,
    /// All calls of one tool in a tenant.
    Tool,
}

/// A budget: each holder in its scope has so much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRule {
    /// Its name, unlike any other.
    pub name: String,
    /// Who shares it.
    pub scope: BudgetScope,
    /// The tenants it is for; `*` stands for any text.
    pub tenants: Vec<String>,
    /// The tenants, callers (an agent's name, or `app/person`) or tools it is for.
    pub holders: Vec<String>,
    /// How long it lasts.
    pub window: Window,
    /// How much it is.
    pub limit: Limit,
}

/// All budgets, and what calls cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BudgetRules {
    /// At most 16 of them.
    pub rules: Vec<BudgetRule>,
    /// By tool; a call of any other one costs one unit and no money.
    pub prices: BTreeMap<String, Amount>,
}

/// Why there cannot be such budgets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadBudget {
    /// More than a call can be charged to.
    #[error("there are more than {BUDGETS_OF_CALL_MAX} budgets")]
    TooMany,
    /// The name is empty, too long or has a control character in it.
    #[error("the name of a budget has 1 to {BUDGET_NAME_BYTES_MAX} bytes and no control characters, unlike {0:?}")]
    Name(String),
    /// Two are called so.
    #[error("two budgets are called {0:?}")]
    Twice(String),
    /// Neither units nor money is limited.
    #[error("the budget {0:?} limits neither units nor money")]
    Endless(String),
    /// A number is beyond all use.
    #[error("{0:?} is more than {AMOUNT_MAX} units or millionths of a dollar")]
    TooMuch(String),
}

impl BudgetRules {
    /// Whether they make sense.
    pub fn check(&self) -> Result<(), BadBudget> {
        if self.rules.len() > BUDGETS_OF_CALL_MAX {
            return Err(BadBudget::TooMany);
        }
        let mut names = HashSet::new();
        for BudgetRule { name, limit, .. } in &self.rules {
            if name.is_empty() || name.len() > BUDGET_NAME_BYTES_MAX || name.contains(char::is_control) {
                return Err(BadBudget::Name(name.clone()));
            }
            if !names.insert(name) {
                return Err(BadBudget::Twice(name.clone()));
            }
            match (limit.units, limit.micro_usd) {
                (None, None) => return Err(BadBudget::Endless(name.clone())),
                (units, usd) if units.max(usd).is_some_and(|most| most > AMOUNT_MAX) => {
                    return Err(BadBudget::TooMuch(name.clone()));
                }
                _ => {}
            }
        }
        match self.prices.iter().find(|(_, price)| price.units.max(price.micro_usd) > AMOUNT_MAX) {
            Some((tool, _)) => Err(BadBudget::TooMuch(tool.clone())),
            None => Ok(()),
        }
    }

    /// What a call costs, and of which budgets (by their place): nothing unless it calls a tool.
    pub(crate) fn of(&self, principal: &Principal, target: &Target) -> (Amount, Vec<(usize, BudgetKey)>) {
        let Target::Tool(tool) = target else { return (Amount::ZERO, Vec::new()) };
        let price = self.prices.get(tool).copied().unwrap_or(PRICE);
        if price == Amount::ZERO {
            return (price, Vec::new());
        }
        let tenant = principal.tenant.as_str();
        let of_rule = |(at, rule): (usize, &BudgetRule)| {
            let holder = match rule.scope {
                BudgetScope::Tenant => glob::any(&rule.holders, tenant).then(String::new),
                BudgetScope::Principal => {
                    glob::any(&rule.holders, &spelt(&principal.caller)).then(|| principal.owner())
                }
                BudgetScope::Tool => glob::any(&rule.holders, tool).then(|| tool.clone()),
            };
            let holder = holder.filter(|_| glob::any(&rule.tenants, tenant))?;
            Some((at, BudgetKey { budget: rule.name.clone(), tenant: tenant.to_owned(), holder }))
        };
        (price, self.rules.iter().enumerate().filter_map(of_rule).collect())
    }
}

/// A caller as operators write it.
fn spelt(caller: &Caller) -> String {
    match caller {
        Caller::Agent(agent) => agent.clone(),
        Caller::Person { app, person } => format!("{app}/{person}"),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::TenantId;

    use super::*;

    fn rule(name: &str, scope: BudgetScope, tenants: &[&str], holders: &[&str]) -> BudgetRule {
        let globs = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
        BudgetRule {
            name: name.into(),
            scope,
            tenants: globs(tenants),
            holders: globs(holders),
            window: Window::Day,
            limit: Limit { units: Some(5), micro_usd: None },
        }
    }

    #[test]
    fn a_call_is_charged_to_every_budget_that_is_for_it() {
        let rules = BudgetRules {
            rules: vec![
                rule("tenants", BudgetScope::Tenant, &["*"], &["acme", "x*"]),
                rule("agents", BudgetScope::Principal, &["acme"], &["bot-*"]),
                rule("people", BudgetScope::Principal, &["*"], &["desk/*"]),
                rule("tools", BudgetScope::Tool, &["*"], &["files.*"]),
            ],
            prices: [("free".to_owned(), Amount::ZERO), ("dear".to_owned(), Amount { units: 7, micro_usd: 9 })].into(),
        };
        rules.check().unwrap();
        let agent =
            |tenant: &str, name: &str| Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(name.into()) };
        let person = |app: &str, person: &str| Principal {
            tenant: TenantId::new("acme"),
            caller: Caller::Person { app: app.into(), person: person.into() },
        };
        for (principal, tool, price, names) in [
            (agent("acme", "bot-1"), "files.read", 1, vec!["tenants", "agents", "tools"]),
            (agent("acme", "ann"), "dear", 7, vec!["tenants"]),
            (agent("other", "bot-1"), "files.read", 1, vec!["tools"]),
            (agent("xyz", "bot-1"), "dear", 7, vec!["tenants"]),
            (person("desk", "p"), "dear", 7, vec!["tenants", "people"]),
            (person("des", "k/p"), "dear", 7, vec!["tenants"]),
            (agent("acme", "bot-1"), "free", 0, vec![]),
        ] {
            let (cost, keys) = rules.of(&principal, &Target::Tool(tool.into()));
            let found: Vec<_> = keys.iter().map(|(at, key)| (&*rules.rules[*at].name, &*key.budget)).collect();
            assert_eq!(found, names.iter().map(|name| (*name, *name)).collect::<Vec<_>>(), "{principal:?} {tool}");
            assert_eq!(cost.units, price);
            assert!(keys.iter().all(|(_, key)| key.tenant == principal.tenant.as_str()));
        }
        let holder = |principal: &Principal| {
            let (_, keys) = rules.of(principal, &Target::Tool("files.read".into()));
            keys.into_iter().map(|(_, key)| key.holder).collect::<Vec<_>>()
        };
        assert_eq!(holder(&agent("acme", "bot-1")), ["", "agent:5:bot-1", "files.read"]);
        let (cost, keys) = rules.of(&agent("acme", "bot-1"), &Target::Resource("files.read".into()));
        assert!(cost == Amount::ZERO && keys.is_empty(), "only tools cost anything");
    }

    #[test]
    fn budgets_that_make_no_sense_are_refused() {
        let good = rule("b", BudgetScope::Tenant, &["*"], &["*"]);
        let rules = |rules: Vec<BudgetRule>| BudgetRules { rules, ..BudgetRules::default() };
        let named = |name: &str| BudgetRule { name: name.into(), ..good.clone() };
        let limited = |limit| BudgetRule { limit, ..good.clone() };
        rules(vec![good.clone()]).check().unwrap();
        let much = Some(AMOUNT_MAX + 1);
        for (bad, error) in [
            (rules(vec![named("")]), BadBudget::Name(String::new())),
            (rules(vec![named("a\nb")]), BadBudget::Name("a\nb".into())),
            (rules(vec![good.clone(), good.clone()]), BadBudget::Twice("b".into())),
            (rules(vec![limited(Limit::default())]), BadBudget::Endless("b".into())),
            (rules(vec![limited(Limit { units: much, micro_usd: Some(1) })]), BadBudget::TooMuch("b".into())),
            (rules((0..=16).map(|at| named(&at.to_string())).collect()), BadBudget::TooMany),
            (
                BudgetRules {
                    prices: [("t".to_owned(), Amount { units: 0, micro_usd: AMOUNT_MAX + 1 })].into(),
                    ..BudgetRules::default()
                },
                BadBudget::TooMuch("t".into()),
            ),
        ] {
            assert_eq!(bad.check(), Err(error));
        }
    }
}
