//! Budgets: how replicas lease slices of them, and give back what they did not use.

use longhaul_core::{Amount, BudgetKey, BudgetWindow, Delta, Limit, Reserved, Timestamp, Window};

use crate::convert::Bad;
use crate::pb;

/// Slices leased, or changes given back, in one call.
pub const BUDGET_LEASES_MAX: usize = 256;
/// Budgets on one page.
pub const BUDGETS_PAGE: usize = 1000;

/// A wish for a slice of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetWish {
    /// Random for each wish: the same one again gets the same slice again.
    pub id: String,
    /// Of what.
    pub key: BudgetKey,
    /// How long the budget lasts.
    pub window: Window,
    /// How much there is in a window.
    pub limit: Limit,
    /// What is needed at once.
    pub demand: Amount,
    /// What would be good to have beside it.
    pub ahead: Amount,
}

/// A slice of a budget. It belongs to who leased it until it is given back, or the window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLease {
    /// When the window began.
    pub starts_at: Timestamp,
    /// When it ends.
    pub ends_at: Timestamp,
    /// When this was written, by the same clock.
    pub now: Timestamp,
    /// How much; perhaps nothing.
    pub granted: Amount,
    /// What is left for everybody else.
    pub left: Limit,
}

/// What is added to what was taken of a budget, or taken from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetReturn {
    /// Random for each of them: the same one again changes nothing.
    pub id: String,
    /// Of what.
    pub from: BudgetWindow,
    /// How much; what is given back is negative.
    pub delta: Delta,
}

/// How a budget stands in its present window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetState {
    /// Whose share of which budget.
    pub key: BudgetKey,
    /// When the window began.
    pub starts_at: Timestamp,
    /// When it ends.
    pub ends_at: Timestamp,
    /// How much there is, as was said with the last lease.
    pub limit: Limit,
    /// How much of it is taken, what replicas hold unused included.
    pub taken: Amount,
}

type Read<T> = Result<T, Bad>;

pub(crate) fn amount_to(amount: Amount) -> pb::Amount {
    pb::Amount { units: amount.units, micro_usd: amount.micro_usd }
}

pub(crate) fn amount_from(amount: pb::Amount) -> Amount {
    Amount { units: amount.units, micro_usd: amount.micro_usd }
}

fn limit_to(limit: Limit) -> pb::BudgetLimit {
    pb::BudgetLimit { units: limit.units, micro_usd: limit.micro_usd }
}

fn limit_from(limit: Option<pb::BudgetLimit>) -> Read<Limit> {
    let pb::BudgetLimit { units, micro_usd } = limit.ok_or(Bad("limit"))?;
    Ok(Limit { units, micro_usd })
}

fn key_to(key: BudgetKey) -> pb::BudgetKey {
    pb::BudgetKey { budget: key.budget, tenant: key.tenant, holder: key.holder }
}

fn key_from(key: Option<pb::BudgetKey>) -> Read<BudgetKey> {
    let pb::BudgetKey { budget, tenant, holder } = key.ok_or(Bad("budget"))?;
    Ok(BudgetKey { budget, tenant, holder })
}

fn window_to(window: BudgetWindow) -> pb::BudgetWindow {
    pb::BudgetWindow { key: Some(key_to(window.key)), starts_at: window.starts_at.as_micros() }
}

fn window_from(window: pb::BudgetWindow) -> Read<BudgetWindow> {
    Ok(BudgetWindow { key: key_from(window.key)?, starts_at: Timestamp::from_micros(window.starts_at) })
}

pub(crate) fn reserved_to(reserved: Reserved) -> pb::Reserved {
    let from = reserved.from.into_iter().map(window_to).collect();
    pb::Reserved { amount: Some(amount_to(reserved.amount)), from }
}

pub(crate) fn reserved_from(reserved: pb::Reserved) -> Read<Reserved> {
    Ok(Reserved {
        amount: amount_from(reserved.amount.ok_or(Bad("amount"))?),
        from: reserved.from.into_iter().map(window_from).collect::<Read<_>>()?,
    })
}

pub(crate) fn wish_to(wish: BudgetWish) -> pb::BudgetWish {
    pb::BudgetWish {
        id: wish.id,
        key: Some(key_to(wish.key)),
        window: wish.window.name().to_owned(),
        limit: Some(limit_to(wish.limit)),
        demand: Some(amount_to(wish.demand)),
        ahead: Some(amount_to(wish.ahead)),
    }
}

pub(crate) fn wish_from(wish: pb::BudgetWish) -> Read<BudgetWish> {
    Ok(BudgetWish {
        id: wish.id,
        key: key_from(wish.key)?,
        window: Window::from_name(&wish.window).ok_or(Bad("window"))?,
        limit: limit_from(wish.limit)?,
        demand: amount_from(wish.demand.ok_or(Bad("demand"))?),
        ahead: amount_from(wish.ahead.ok_or(Bad("ahead"))?),
    })
}

pub(crate) fn lease_to(lease: BudgetLease) -> pb::BudgetLease {
    pb::BudgetLease {
        starts_at: lease.starts_at.as_micros(),
        ends_at: lease.ends_at.as_micros(),
        now: lease.now.as_micros(),
        granted: Some(amount_to(lease.granted)),
        left: Some(limit_to(lease.left)),
    }
}

pub(crate) fn lease_from(lease: pb::BudgetLease) -> Read<BudgetLease> {
    Ok(BudgetLease {
        starts_at: Timestamp::from_micros(lease.starts_at),
        ends_at: Timestamp::from_micros(lease.ends_at),
        now: Timestamp::from_micros(lease.now),
        granted: amount_from(lease.granted.ok_or(Bad("granted"))?),
        left: limit_from(lease.left)?,
    })
}

pub(crate) fn return_to(back: BudgetReturn) -> pb::BudgetReturn {
    let Delta { units, micro_usd } = back.delta;
    pb::BudgetReturn { id: back.id, from: Some(window_to(back.from)), units, micro_usd }
}

pub(crate) fn return_from(back: pb::BudgetReturn) -> Read<BudgetReturn> {
    let delta = Delta { units: back.units, micro_usd: back.micro_usd };
    Ok(BudgetReturn { id: back.id, from: window_from(back.from.ok_or(Bad("budget"))?)?, delta })
}

pub(crate) fn after_to(after: Option<BudgetKey>) -> pb::BudgetsRequest {
    pb::BudgetsRequest { after: after.map(key_to) }
}

pub(crate) fn after_from(request: pb::BudgetsRequest) -> Read<Option<BudgetKey>> {
    request.after.map(|after| key_from(Some(after))).transpose()
}

pub(crate) fn state_to(state: BudgetState) -> pb::BudgetState {
    pb::BudgetState {
        key: Some(key_to(state.key)),
        starts_at: state.starts_at.as_micros(),
        ends_at: state.ends_at.as_micros(),
        limit: Some(limit_to(state.limit)),
        taken: Some(amount_to(state.taken)),
    }
}

pub(crate) fn state_from(state: pb::BudgetState) -> Read<BudgetState> {
    Ok(BudgetState {
        key: key_from(state.key)?,
        starts_at: Timestamp::from_micros(state.starts_at),
        ends_at: Timestamp::from_micros(state.ends_at),
        limit: limit_from(state.limit)?,
        taken: amount_from(state.taken.ok_or(Bad("taken"))?),
    })
}
