//! What operators decide: credentials and switches.

use std::time::Duration;

use longhaul_bus::{Control as ControlHint, Hint};
use longhaul_core::{Scope, Timestamp};
use longhaul_rpc::{
    CREDENTIALS_MAX, CREDENTIALS_PAGE, Changes, CredentialChange, CredentialInfo, Error, KeyDigest, NewCredential,
    SWITCHES_MAX, SWITCHES_PAGE, Stopped, Switch, Switched, wrong_switch,
};

use crate::TaskStore;
use crate::store::{insist, insist_counted};

/// How long a credential that has ended is still listed, and a switch that is on is remembered.
pub(crate) const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Tasks stopped at once.
const STOP_ROWS: u32 = 500;

fn sound(wrong: Option<&'static str>) -> Result<(), Error> {
    wrong.map_or(Ok(()), |wrong| Err(Error::Fault(wrong.into())))
}

/// An id as it may be stored: no other one is known.
fn an_id(id: &str) -> bool {
    !id.contains('\0')
}

impl TaskStore {
    pub(crate) async fn add_credential(&self, new: NewCredential) -> Result<Option<CredentialInfo>, Error> {
        sound(new.wrong())?;
        let this = self.clone();
        self.shielded(async move {
            let made = insist(|| this.inner.store.create_credential(&new, CREDENTIALS_MAX)).await?;
            this.hint(ControlHint::Credentials);
            Ok(made)
        })
        .await
    }

    pub(crate) async fn rekey_credential(
        &self,
        id: &str,
        sha256: KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Result<Option<CredentialInfo>, Error> {
        if !an_id(id) {
            return Ok(None);
        }
        let (this, id) = (self.clone(), id.to_owned());
        self.shielded(async move {
            let store = &this.inner.store;
            let rotated = insist(|| store.rotate_credential(&id, &sha256, overlap, expires_in)).await?;
            this.hint(ControlHint::Credentials);
            Ok(rotated)
        })
        .await
    }

    pub(crate) async fn end_credential(&self, id: &str) -> Result<Option<CredentialInfo>, Error> {
        if !an_id(id) {
            return Ok(None);
        }
        let (this, id) = (self.clone(), id.to_owned());
        self.shielded(async move {
            let revoked = insist(|| this.inner.store.revoke_credential(&id)).await?;
            this.hint(ControlHint::Credentials);
            Ok(revoked)
        })
        .await
    }

    pub(crate) async fn list_credentials(
        &self,
        tenant: Option<&str>,
        after: &str,
    ) -> Result<Vec<CredentialInfo>, Error> {
        if !an_id(after) || tenant.is_some_and(|tenant| !an_id(tenant)) {
            return Ok(Vec::new());
        }
        Ok(insist(|| self.inner.store.credentials(tenant, after, CREDENTIALS_PAGE)).await?)
    }

    pub(crate) async fn read_credential_changes(&self, since: u64) -> Result<Changes<CredentialChange>, Error> {
        Ok(insist(|| self.inner.store.credential_changes(since, CREDENTIALS_PAGE)).await?)
    }

    pub(crate) async fn turn_switch(&self, scope: &Scope, off: bool, why: &str) -> Result<Switched, Error> {
        sound(wrong_switch(scope, why))?;
        let (this, scope, why) = (self.clone(), scope.clone(), why.to_owned());
        self.shielded(async move {
            let store = &this.inner.store;
            let (switched, repeated) = insist_counted(|| store.set_switch(&scope, off, &why, SWITCHES_MAX)).await?;
            this.hint(ControlHint::Switches);
            match switched {
                Switched::Changed | Switched::Full => tracing::warn!(%scope, off, ?switched, "a switch was set"),
                Switched::Same => {}
            }
            // A statement that was repeated may have found its own work done.
            Ok(if repeated && switched == Switched::Same { Switched::Changed } else { switched })
        })
        .await
    }

    pub(crate) async fn read_switch_changes(&self, since: u64) -> Result<Changes<Switch>, Error> {
        Ok(insist(|| self.inner.store.switch_changes(since, SWITCHES_PAGE)).await?)
    }

    /// One batch, as if each task's owner had cancelled it.
    pub(crate) async fn stop_within(&self, scope: &Scope) -> Result<Stopped, Error> {
        sound(wrong_switch(scope, "-"))?;
        let (this, scope) = (self.clone(), scope.clone());
        self.shielded(async move {
            let tasks = insist(|| this.inner.store.open_within(&scope, STOP_ROWS)).await?;
            let more = tasks.len() >= STOP_ROWS as usize;
            let stopped = this.apply(tasks, Timestamp::from_micros(0), |task, _| task.cancel(), false).await?;
            Ok(Stopped { stopped, more })
        })
        .await
    }

    fn hint(&self, hint: ControlHint) {
        self.inner.hints.bus.publish(Hint::Control(hint));
    }
}
