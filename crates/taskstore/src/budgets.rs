//! Budgets, as replicas ask for them.

use longhaul_core::BudgetKey;
use longhaul_core::budget::{BUDGET_NAME_BYTES_MAX, BUDGETS_OF_CALL_MAX};
use longhaul_core::{NewTask, Reserved};
use longhaul_rpc::{BUDGET_LEASES_MAX, BUDGETS_PAGE, BudgetLease, BudgetReturn, BudgetState, BudgetWish, Error};

use crate::TaskStore;
use crate::ops::storable;
use crate::store::insist;

/// The longest id of a lease or a return, in bytes.
const ID_BYTES_MAX: usize = 64;

impl TaskStore {
    pub(crate) async fn lease(&self, wishes: Vec<BudgetWish>) -> Result<Vec<BudgetLease>, Error> {
        check(wishes.iter().map(|wish| (&*wish.id, &wish.key)), wishes.len())?;
        let this = self.clone();
        self.shielded(async move { Ok(insist(|| this.inner.store.lease_budget(&wishes)).await?) }).await
    }

    pub(crate) async fn give_back(&self, returns: Vec<BudgetReturn>) -> Result<(), Error> {
        check(returns.iter().map(|one| (&*one.id, &one.from.key)), returns.len())?;
        let this = self.clone();
        self.shielded(async move { Ok(insist(|| this.inner.store.return_budget(&returns)).await?) }).await
    }

    pub(crate) async fn stands(&self, after: Option<BudgetKey>) -> Result<Vec<BudgetState>, Error> {
        storable(after.iter().flat_map(texts))?;
        Ok(insist(|| self.inner.store.budgets(after.as_ref(), BUDGETS_PAGE)).await?)
    }
}

/// Whether what a new task has set aside can be stored.
pub(crate) fn check_reserved(new: &NewTask) -> Result<(), Error> {
    let Some(Reserved { from, .. }) = &new.reserved else { return Ok(()) };
    if from.len() > BUDGETS_OF_CALL_MAX {
        return Err(Error::Fault(format!("more than {BUDGETS_OF_CALL_MAX} budgets for one call")));
    }
    from.iter().try_for_each(|window| check_key(&window.key))
}

fn check<'a>(said: impl Iterator<Item = (&'a str, &'a BudgetKey)>, count: usize) -> Result<(), Error> {
    if count > BUDGET_LEASES_MAX {
        return Err(Error::Fault(format!("more than {BUDGET_LEASES_MAX} budgets at once")));
    }
    for (id, key) in said {
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(Error::Fault(format!("the id of a lease has 1 to {ID_BYTES_MAX} bytes")));
        }
        storable([id])?;
        check_key(key)?;
    }
    Ok(())
}

fn check_key(key: &BudgetKey) -> Result<(), Error> {
    if key.budget.is_empty() || key.budget.len() > BUDGET_NAME_BYTES_MAX {
        return Err(Error::Fault(format!("the name of a budget has 1 to {BUDGET_NAME_BYTES_MAX} bytes")));
    }
    storable(texts(key))
}

fn texts(key: &BudgetKey) -> [&str; 3] {
    [&key.budget, &key.tenant, &key.holder]
}
