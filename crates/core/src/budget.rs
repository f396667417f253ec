//! What calls cost, and what there is to spend.
//!
//! A budget is so much a window for each holder: a tenant, a caller, or a tool of a tenant. What a call may cost is
//! reserved before it begins; when it ends, what it did not use is given back.

use std::time::Duration;

use chrono::{DateTime, Datelike as _, Months, SecondsFormat, TimeZone as _, Utc};

use crate::time::Timestamp;

/// The longest name of a budget, in bytes.
pub const BUDGET_NAME_BYTES_MAX: usize = 64;
/// Budgets that one call is charged to.
pub const BUDGETS_OF_CALL_MAX: usize = 16;
/// The most of either kind that a price, a limit or a report may say, so that no sum of them is beyond an `i64`.
pub const AMOUNT_MAX: u64 = 1_000_000_000_000_000;

/// Units, and money in millionths of a US dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Amount {
    /// Units.
    pub units: u64,
    /// Micro-USD.
    pub micro_usd: u64,
}

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self { units: 0, micro_usd: 0 };

    /// Both kinds by `of`, each with its counterpart in `other`.
    fn zip(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self { units: of(self.units, other.units), micro_usd: of(self.micro_usd, other.micro_usd) }
    }

    /// The sum, as far as numbers go.
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// What is left without `other`; of neither kind less than nothing.
    pub fn minus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    /// The greater one of each kind.
    pub fn max(self, other: Self) -> Self {
        self.zip(other, u64::max)
    }

    /// The smaller one of each kind.
    pub fn min(self, other: Self) -> Self {
        self.zip(other, u64::min)
    }

    /// So many times as much.
    pub fn times(self, factor: u64) -> Self {
        Self { units: self.units.saturating_mul(factor), micro_usd: self.micro_usd.saturating_mul(factor) }
    }

    /// Whether there is enough of both kinds for `cost`.
    pub fn covers(self, cost: Self) -> bool {
        self.units >= cost.units && self.micro_usd >= cost.micro_usd
    }

    /// What has to be added to `other` to make it this.
    pub fn less(self, other: Self) -> Delta {
        let of = |one: u64, other: u64| one.min(AMOUNT_MAX) as i64 - other.min(AMOUNT_MAX) as i64;
        Delta { units: of(self.units, other.units), micro_usd: of(self.micro_usd, other.micro_usd) }
    }
}

/// A change of an [`Amount`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Delta {
    /// Units.
    pub units: i64,
    /// Micro-USD.
    pub micro_usd: i64,
}

impl Delta {
    /// No change.
    pub const ZERO: Self = Self { units: 0, micro_usd: 0 };
}

/// How much of a budget there is in a window; of a kind that is `None` there is no end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Limit {
    /// Units.
    pub units: Option<u64>,
    /// Micro-USD.
    pub micro_usd: Option<u64>,
}

impl Limit {
    /// Nothing at all.
    pub const NOTHING: Self = Self { units: Some(0), micro_usd: Some(0) };

    /// As an amount; a kind without end is as much as there can be.
    pub fn amount(self) -> Amount {
        Amount { units: self.units.unwrap_or(u64::MAX), micro_usd: self.micro_usd.unwrap_or(u64::MAX) }
    }

    /// What is left of it once so much is taken.
    pub fn without(self, taken: Amount) -> Self {
        let left = |limit: Option<u64>, taken| limit.map(|limit| limit.saturating_sub(taken));
        Self { units: left(self.units, taken.units), micro_usd: left(self.micro_usd, taken.micro_usd) }
    }

    /// What is handed out of this to who needs `demand` at once and would like `ahead` beside it: near the end no more than
    /// is needed, so that nobody holds what another one could use.
    pub fn share(self, demand: Amount, ahead: Amount) -> Amount {
        let of = |left: Option<u64>, demand: u64, ahead: u64| match left {
            None => demand.saturating_add(ahead).min(AMOUNT_MAX),
            Some(left) if left <= demand => left,
            Some(left) => demand + ahead.min((left - demand) / SHARES),
        };
        Amount {
            units: of(self.units, demand.units, ahead.units),
            micro_usd: of(self.micro_usd, demand.micro_usd, ahead.micro_usd),
        }
    }
}

/// Nobody holds more beyond the need than this part of what is left.
const SHARES: u64 = 8;

/// How long a budget lasts; windows begin with the calendar's, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Window {
    /// Sixty seconds.
    Minute,
    /// Sixty minutes.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From the first day to the last.
    Month,
}

impl Window {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Minute, Self::Hour, Self::Day, Self::Month];

    /// Its stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// Reads a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.name() == name)
    }

    /// The window of this kind that `moment` is in: when it began, and when the next one begins.
    pub fn around(self, moment: Timestamp) -> (Timestamp, Timestamp) {
        const MINUTE: i64 = 60_000_000;
        let even = |length: i64| {
            let start = moment.as_micros().div_euclid(length).saturating_mul(length);
            (Timestamp::from_micros(start), Timestamp::from_micros(start.saturating_add(length)))
        };
        match self {
            Self::Minute => even(MINUTE),
            Self::Hour => even(60 * MINUTE),
            Self::Day => even(24 * 60 * MINUTE),
            Self::Month => month(moment).unwrap_or_else(|| even(30 * 24 * 60 * MINUTE)),
        }
    }
}

/// `None` if the calendar does not reach that far.
fn month(moment: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let day = DateTime::from_timestamp_micros(moment.as_micros())?;
    let first = Utc.with_ymd_and_hms(day.year(), day.month(), 1, 0, 0, 0).single()?;
    let next = first.checked_add_months(Months::new(1))?;
    Some((Timestamp::from_micros(first.timestamp_micros()), Timestamp::from_micros(next.timestamp_micros())))
}

/// A moment as people read it: RFC 3339, in UTC, to the second.
pub fn spelt(moment: Timestamp) -> String {
    let moment = DateTime::from_timestamp_micros(moment.as_micros()).unwrap_or(DateTime::<Utc>::MAX_UTC);
    moment.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Whose share of which budget.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetKey {
    /// The budget's name.
    pub budget: String,
    /// The tenant.
    pub tenant: String,
    /// The caller in it ([`Principal::owner`](crate::Principal::owner)), or the tool; empty for the tenant as a whole.
    pub holder: String,
}

/// A share of a budget, in one window.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetWindow {
    /// Whose share of which budget.
    pub key: BudgetKey,
    /// When the window began.
    pub starts_at: Timestamp,
}

/// What was set aside for a call, in each of its budgets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// How much.
    pub amount: Amount,
    /// Of which: at most [`BUDGETS_OF_CALL_MAX`].
    pub from: Vec<BudgetWindow>,
}

/// How a call ended, as far as its price goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It was answered.
    Answered,
    /// It was cancelled, interrupted, or never begun.
    Broken,
}

/// What a call is charged in the end: what it reported; else the price if it was answered, and nothing if it was not.
pub fn charge(price: Amount, reported: Option<Amount>, done: Done) -> Amount {
    match (reported, done) {
        (Some(reported), _) => reported,
        (None, Done::Answered) => price,
        (None, Done::Broken) => Amount::ZERO,
    }
}

/// How long is left until `end`.
pub fn until(now: Timestamp, end: Timestamp) -> Duration {
    Duration::from_micros(u64::try_from(end.as_micros().saturating_sub(now.as_micros())).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_micros(text.parse::<DateTime<Utc>>().unwrap().timestamp_micros())
    }

    #[test]
    fn windows_begin_with_the_calendars() {
        for (window, moment, start, end) in [
            (Window::Minute, "2028-02-29T23:59:59.999Z", "2028-02-29T23:59:00Z", "2028-03-01T00:00:00Z"),
            (Window::Hour, "2028-02-29T23:00:00Z", "2028-02-29T23:00:00Z", "2028-03-01T00:00:00Z"),
            (Window::Day, "2028-02-29T12:00:00Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"),
            (Window::Month, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
            (Window::Month, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            (Window::Month, "2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z"),
            (Window::Day, "1969-12-31T23:59:59Z", "1969-12-31T00:00:00Z", "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(window.around(at(moment)), (at(start), at(end)), "{window:?} {moment}");
        }
        for window in Window::ALL {
            assert_eq!(Window::from_name(window.name()), Some(window));
            for micros in [i64::MIN, i64::MAX] {
                let (start, end) = window.around(Timestamp::from_micros(micros));
                assert!(start <= end);
            }
        }
        assert_eq!(spelt(at("2026-12-01T03:04:05.6Z")), "2026-12-01T03:04:05Z");
    }

    #[test]
    fn a_share_is_what_is_needed_and_less_beyond_it_the_nearer_the_end() {
        let units = |units| Amount { units, micro_usd: 0 };
        let share = |left, demand, ahead| {
            let limit = Limit { units: Some(left), micro_usd: None };
            let share = limit.share(units(demand), Amount { units: ahead, micro_usd: 7 });
            assert_eq!(share.micro_usd, 7, "of that there is no end");
            share.units
        };
        assert_eq!(share(1000, 10, 50), 60);
        assert_eq!(share(100, 10, 50), 10 + 90 / 8);
        assert_eq!(share(12, 10, 50), 10);
        assert_eq!(share(7, 10, 50), 7);
        assert_eq!(share(0, 10, 50), 0);
        assert_eq!(share(5, 0, 50), 0);
        assert_eq!(Limit::NOTHING.share(units(1), units(1)), Amount::ZERO);
    }

    #[test]
    fn what_was_reported_is_charged_and_else_the_price_of_an_answer() {
        let (price, reported) = (Amount { units: 5, micro_usd: 2 }, Amount { units: 9, micro_usd: 0 });
        for (said, done, charged) in [
            (None, Done::Answered, price),
            (None, Done::Broken, Amount::ZERO),
            (Some(reported), Done::Answered, reported),
            (Some(reported), Done::Broken, reported),
            (Some(Amount::ZERO), Done::Answered, Amount::ZERO),
        ] {
            assert_eq!(charge(price, said, done), charged);
        }
        assert_eq!(reported.less(price), Delta { units: 4, micro_usd: -2 });
        assert!(reported.plus(price).covers(price) && !reported.covers(price));
    }
}
