use std::net::SocketAddr;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;

use super::*;
use crate::client::{self, Target};
use crate::{Links, Listener, Server, ServiceToken};

#[path = "../../../../tests/src/certificates.rs"]
mod certificates;

use certificates::{Authority, Certificate};

/// When certificates expired that have.
const PAST: &str = "200102000000Z";
const TOKEN: &str = "a-token-of-all-the-roles";
const TASKS: &str = "/longhaul.v1.Tasks/Pipe";
const WORK: &str = "/longhaul.v1.Work/Pipe";
const CALLS: &str = "/longhaul.v1.Calls/Pipe";
const SWITCH: &str = "/longhaul.v1.Control/SetSwitch";
const SESSIONS: &str = "/longhaul.v1.Control/Sessions";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

fn tls(certificate: &Certificate, authority: &Authority) -> Tls {
    Tls::new(&certificate.pem, &certificate.key, &authority.pem).unwrap()
}

/// A server with nothing behind its guard but its health: who is let in hears that there is no such verb.
struct Bare {
    at: SocketAddr,
    links: Links,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Bare {
    async fn start(token: ServiceToken, tls: Option<Tls>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (at, stop, tasks, links) =
            (listener.local_addr().unwrap(), CancellationToken::new(), TaskTracker::new(), Links::default());
        for listener in [Listener::Tcp(listener), links.listen("bare")] {
            let server = Server::new(token.clone(), 0, stop.clone()).with_tls(tls.clone());
            server.health().set(true).await;
            tasks.spawn(async move { server.serve(listener).await.unwrap() });
        }
        Self { at, links, stop, tasks }
    }

    fn target(&self, tls: Option<Tls>) -> Target {
        let scheme = if tls.is_some() { "https" } else { "http" };
        Target {
            links: self.links.clone().with_tls(tls),
            urls: vec![format!("{scheme}://{}", self.at)],
            token: ServiceToken::new([TOKEN]).unwrap(),
            payload_bytes_max: 0,
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// What a caller with this token is told.
async fn ask(links: &Links, url: &str, token: Option<&ServiceToken>, path: &'static str) -> Code {
    let mut grpc = tonic::client::Grpc::new(links.channel(url).unwrap());
    grpc.ready().await.unwrap();
    let request = tonic::Request::new(());
    let request = token.map_or(request, |token| token.sign(tonic::Request::new(())));
    let codec = ProstCodec::<(), ()>::default();
    grpc.unary(request, PathAndQuery::from_static(path), codec).await.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_token_of_a_role_is_good_for_that_role_alone() {
    let token = |roles, text| ServiceToken::of(roles, [text]).unwrap();
    let (all, gateway, runner, admin) = (
        token(Roles::ALL, TOKEN),
        token(Roles::GATEWAY, "a-token-of-the-gateway"),
        token(Roles::RUNNER, "a-token-of-the-runner"),
        token(Roles::ADMIN, "a-token-of-the-admin"),
    );
    let accepted = all.clone().accepting(&gateway).accepting(&runner).accepting(&admin);
    let bare = Bare::start(accepted, None).await;
    let stranger = token(Roles::ALL, "a-token-of-a-stranger");
    use Code::{PermissionDenied as No, Unauthenticated as Who, Unimplemented as Yes};
    for url in ["memory://bare", &format!("http://{}", bare.at)] {
        for (token, tasks, work, calls, switch, sessions) in [
            (Some(&all), Yes, Yes, Yes, Yes, Yes),
            (Some(&gateway), Yes, No, Yes, No, Yes),
            (Some(&runner), No, Yes, No, No, No),
            (Some(&admin), Yes, No, No, Yes, No),
            (Some(&stranger), Who, Who, Who, Who, Who),
            (None, Who, Who, Who, Who, Who),
        ] {
            let expected = [(TASKS, tasks), (WORK, work), (CALLS, calls), (SWITCH, switch), (SESSIONS, sessions)];
            for (path, answer) in expected {
                assert_eq!(ask(&bare.links, url, token, path).await, answer, "{url} {path} {token:?}");
            }
            assert_eq!(ask(&bare.links, url, token, HEALTH).await, Code::Ok);
        }
    }
    // A gateway shows workers another token than the task-store: a worker must not be able to pass for a gateway.
    let shown = gateway.showing_workers(&stranger).to_workers();
    assert_eq!(ask(&bare.links, "memory://bare", Some(&shown), TASKS).await, Who);
    bare.end().await;
}

#[tokio::test]
async fn a_certificate_is_asked_for_its_role_beside_the_token() {
    let authority = Authority::new("ours");
    let server = tls(&authority.issue("spiffe://longhaul/prod/taskstore"), &authority);
    let all = ServiceToken::new([TOKEN]).unwrap();
    let runner = ServiceToken::of(Roles::RUNNER, ["a-token-of-the-runner"]).unwrap();
    let bare = Bare::start(all.clone().accepting(&runner), Some(server)).await;
    let url = format!("https://{}", bare.at);
    use Code::{PermissionDenied as No, Unimplemented as Yes};
    for (name, token, tasks, work) in [
        ("spiffe://longhaul/prod/gateway", &all, Yes, No),
        ("gateway", &all, Yes, No),
        ("gateway.longhaul.svc", &all, Yes, No),
        ("spiffe://longhaul/runner", &all, No, Yes),
        ("runner", &runner, No, Yes),
        // Both must be of a role that may.
        ("gateway", &runner, No, No),
    ] {
        let links = bare.links.clone().with_tls(Some(tls(&authority.issue(name), &authority)));
        assert_eq!(ask(&links, &url, Some(token), TASKS).await, tasks, "{name}");
        assert_eq!(ask(&links, &url, Some(token), WORK).await, work, "{name}");
    }
    let links = bare.links.clone().with_tls(Some(tls(&authority.issue("gateway"), &authority)));
    assert_eq!(ask(&links, &url, None, TASKS).await, Code::Unauthenticated, "a certificate is no token");
    bare.end().await;
}

#[tokio::test]
async fn nobody_is_reached_and_nobody_comes_in_without_a_good_certificate() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let own = ours.issue("taskstore");
    let bare = Bare::start(ServiceToken::new([TOKEN]).unwrap(), Some(tls(&own, &ours))).await;
    let good = bare.target(Some(tls(&ours.issue("gateway"), &ours)));
    assert!(client::is_serving(&good).await.unwrap());

    // Callers: of another authority, expired, or in the clear.
    let of_others = Tls::new(&theirs.issue("gateway").pem, &own.key, &ours.pem);
    assert!(of_others.is_err(), "the key is another's");
    for (what, certificate) in [("another", theirs.issue("gateway")), ("expired", ours.issue_until("gateway", PAST))] {
        let target = bare.target(Some(tls(&certificate, &ours)));
        assert!(matches!(client::is_serving(&target).await, Err(Error::Unavailable(_))), "{what}");
    }
    assert!(matches!(client::is_serving(&bare.target(None)).await, Err(Error::Unavailable(_))), "in the clear");
    let none = Target { links: Links::default(), ..good.clone() };
    assert!(matches!(client::is_serving(&none).await, Err(Error::Fault(_))), "https without a certificate");
    let clear = Target { urls: vec![format!("http://{}", bare.at)], ..good.clone() };
    assert!(matches!(client::is_serving(&clear).await, Err(Error::Fault(_))), "a certificate, but in the clear");
    assert!(client::is_serving(&good).await.unwrap());
    bare.end().await;

    // Servers: of another authority, expired, of the wrong role, or in the clear.
    let gateway = || Some(tls(&ours.issue("gateway"), &ours));
    let both = [ours.pem.clone(), theirs.pem.clone()].concat();
    let trusting = |certificate: Certificate| Some(Tls::new(&certificate.pem, &certificate.key, &both).unwrap());
    for (what, server) in [
        ("another", trusting(theirs.issue("taskstore"))),
        ("expired", trusting(ours.issue_until("taskstore", PAST))),
        ("a worker", trusting(ours.issue("runner"))),
        ("a gateway", trusting(ours.issue("spiffe://longhaul/gateway"))),
        ("in the clear", None),
    ] {
        let bare = Bare::start(ServiceToken::new([TOKEN]).unwrap(), server).await;
        assert!(matches!(client::is_serving(&bare.target(gateway())).await, Err(Error::Unavailable(_))), "{what}");
        bare.end().await;
    }
}

#[tokio::test]
async fn a_certificate_that_names_no_role_or_does_not_fit_its_key_is_refused_at_once() {
    let authority = Authority::new("ours");
    for name in ["gateways", "www.example", "spiffe://longhaul/gateway/x", "https://longhaul/gateway", "*.gateway"] {
        let certificate = authority.issue(name);
        let made = Tls::new(&certificate.pem, &certificate.key, &authority.pem);
        assert!(made.unwrap_err().to_string().contains("role"), "{name}");
    }
    let (one, other) = (authority.issue("gateway"), authority.issue("gateway"));
    assert!(Tls::new(&one.pem, &other.key, &authority.pem).is_err());
    assert!(Tls::new(&one.pem, &one.key, b"").is_err());
    assert!(Tls::new(b"", &one.key, &authority.pem).is_err());
    assert!(Tls::new(&one.pem, b"", &authority.pem).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_authorities_change_under_load_without_a_failed_request() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let server = tls(&old.issue("taskstore"), &old);
    let caller = tls(&old.issue("gateway"), &old);
    let bare = Bare::start(ServiceToken::new([TOKEN]).unwrap(), Some(server.clone())).await;
    let (load, done) = (TaskTracker::new(), CancellationToken::new());
    for _ in 0..4 {
        // Each request on a connection of its own.
        let (target, done) = (bare.target(Some(caller.clone())), done.clone());
        load.spawn(async move {
            let mut asked = 0;
            while !done.is_cancelled() || asked < 5 {
                assert!(client::is_serving(&target).await.unwrap());
                asked += 1;
            }
        });
    }
    // One step after the other, as an operator does: trust both, show the new one, trust it alone.
    let both = [&old.pem[..], &new.pem].concat();
    let (by_old, by_new) =
        ([old.issue("taskstore"), old.issue("gateway")], [new.issue("taskstore"), new.issue("gateway")]);
    let turn = async |[store, gateway]: &[Certificate; 2], authorities: &[u8]| {
        server.replace(&store.pem, &store.key, authorities).unwrap();
        caller.replace(&gateway.pem, &gateway.key, authorities).unwrap();
        // Each may be in use for a while.
        for _ in 0..5 {
            assert!(client::is_serving(&bare.target(Some(caller.clone()))).await.unwrap());
        }
    };
    turn(&by_old, &both).await;
    turn(&by_new, &both).await;
    done.cancel();
    load.close();
    load.wait().await;
    turn(&by_new, &new.pem).await;
    let former = bare.target(Some(Tls::new(&by_old[1].pem, &by_old[1].key, &both).unwrap()));
    assert!(client::is_serving(&former).await.is_err(), "who was trusted before is not any more");
    // What cannot be used changes nothing.
    assert!(server.replace(&by_old[0].pem, &by_new[0].key, &new.pem).is_err());
    assert!(client::is_serving(&bare.target(Some(caller))).await.unwrap());
    bare.end().await;
}
