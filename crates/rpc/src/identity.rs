//! Which role may ask what of which: a gateway cannot claim, a worker cannot create.
//!
//! A caller is known by the service token that it shows, and, where the connection has them, by its certificate too. Both
//! must be of a role that may.

use std::ops::{BitAnd, BitOr};
use std::task::{Context, Poll};

use futures::future::{Either, Ready, ready};
use http::{Request, Response};
use tonic::Status;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tower::{Layer, Service};

use crate::link::ServiceToken;
use crate::tls::roles_of;

/// Some of the roles of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

impl Roles {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Those that speak with clients.
    pub const GATEWAY: Self = Self(1);
    /// Those that run tools.
    pub const RUNNER: Self = Self(2);
    /// Those that keep the tasks.
    pub const TASKSTORE: Self = Self(4);
    /// Operators, by the command line.
    pub const ADMIN: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// The role of this name.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "gateway" => Self::GATEWAY,
            "runner" => Self::RUNNER,
            "taskstore" => Self::TASKSTORE,
            "admin" => Self::ADMIN,
            _ => Self::NONE,
        }
    }

    /// Whether any is in both.
    pub(crate) fn meet(self, others: Self) -> bool {
        self & others != Self::NONE
    }
}

impl BitOr for Roles {
    type Output = Self;

    fn bitor(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl BitAnd for Roles {
    type Output = Self;

    fn bitand(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }
}

/// Who may ask for a verb of `Control`. One that is not listed is for operators alone.
const CONTROL: [(&str, Roles); 19] = [
    ("EndSession", Roles::GATEWAY),
    ("SetLogLevel", Roles::GATEWAY),
    ("Sessions", Roles::GATEWAY),
    ("Subscribe", Roles::GATEWAY),
    ("Subscriptions", Roles::GATEWAY),
    ("CreateCredential", OPERATORS),
    ("RotateCredential", OPERATORS),
    ("RevokeCredential", OPERATORS),
    ("ListCredentials", OPERATORS),
    ("CredentialChanges", Roles(Roles::GATEWAY.0 | OPERATORS.0)),
    ("SetSwitch", OPERATORS),
    ("StopRunning", OPERATORS),
    ("SwitchChanges", ADMITTING),
    ("LeaseBudget", ADMITTING),
    ("ReturnBudget", ADMITTING),
    ("Budgets", ADMITTING),
    ("Record", ADMITTING),
    ("AuditChains", OPERATORS),
    ("AuditRows", OPERATORS),
];
/// Those who change what others may do.
const OPERATORS: Roles = Roles(Roles::ADMIN.0 | Roles::TASKSTORE.0);
/// Those who decide about calls, and operators.
const ADMITTING: Roles = Roles(Roles::GATEWAY.0 | Roles::RUNNER.0 | OPERATORS.0);

/// Who may ask at a path, `/package.Service/Verb`; `None`: everyone, without a token.
fn may_ask(path: &str) -> Option<Roles> {
    Some(match path.trim_start_matches('/').split_once('/') {
        Some(("grpc.health.v1.Health", _)) => return None,
        // Who may hand out credentials could do no less with tasks.
        Some(("longhaul.v1.Tasks", _)) => Roles::GATEWAY | Roles::ADMIN,
        Some(("longhaul.v1.Work", _)) => Roles::RUNNER,
        Some(("longhaul.v1.Calls", _)) => Roles::GATEWAY,
        Some(("longhaul.v1.Control", verb)) => {
            CONTROL.iter().find(|(known, _)| *known == verb).map_or(OPERATORS, |(_, roles)| *roles)
        }
        _ => Roles::ALL,
    })
}

/// Lets those in who may ask.
#[derive(Clone)]
pub(crate) struct Guard(pub(crate) ServiceToken);

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, token: self.0.clone() }
    }
}

/// A service behind its guard.
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    token: ServiceToken,
}

impl<S> Guarded<S> {
    fn admit<B>(&self, request: &Request<B>) -> Result<(), Status> {
        let path = request.uri().path();
        let Some(may) = may_ask(path) else { return Ok(()) };
        let by_token = self.token.roles(request.headers())?;
        let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
        let certificates = connection.and_then(TlsConnectInfo::peer_certs);
        // Without TLS there is no certificate to ask for.
        let by_certificate = match (connection, certificates.as_ref().and_then(|all| all.first())) {
            (None, _) => Roles::ALL,
            (Some(_), certificate) => certificate.map(roles_of).unwrap_or_default(),
        };
        if may.meet(by_token & by_certificate) {
            return Ok(());
        }
        tracing::warn!(path, ?by_token, ?by_certificate, "a role asked for what another may ask for");
        Err(Status::permission_denied(format!("this service credential is not of a role that may ask for {path}")))
    }
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<R>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.admit(&request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_of_control_says_who_may_ask_for_it() {
        let proto = include_str!("../../../proto/longhaul/v1/control.proto");
        let verbs: Vec<_> =
            proto.lines().filter_map(|line| Some(line.trim().strip_prefix("rpc ")?.split_once('(')?.0)).collect();
        assert!(verbs.len() >= 5, "{verbs:?}");
        for verb in verbs {
            assert!(CONTROL.iter().any(|(known, _)| *known == verb), "{verb}: who may ask for it?");
        }
    }

    #[test]
    fn a_gateway_cannot_claim_a_worker_cannot_create_and_neither_changes_what_others_may() {
        for (path, may) in [
            ("/longhaul.v1.Tasks/Pipe", Roles::GATEWAY | Roles::ADMIN),
            ("/longhaul.v1.Work/Pipe", Roles::RUNNER),
            ("/longhaul.v1.Calls/Pipe", Roles::GATEWAY),
            ("/longhaul.v1.Control/EndSession", Roles::GATEWAY),
            ("/longhaul.v1.Control/SetSwitch", OPERATORS),
            ("/longhaul.v1.Control/CreateCredential", OPERATORS),
            ("/longhaul.v1.Control/NotThoughtOf", OPERATORS),
        ] {
            assert_eq!(may_ask(path), Some(may), "{path}");
        }
        assert_eq!(may_ask("/grpc.health.v1.Health/Check"), None);
    }
}
