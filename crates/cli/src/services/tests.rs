use longhaul_rpc::client::{Target, is_serving};
use longhaul_rpc::{Links, Listener, Server};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;

#[path = "../../../../tests/src/certificates.rs"]
mod certificates;

use certificates::{Authority, Certificate};

fn file(folder: &Path, name: &str, text: &[u8]) -> Option<PathBuf> {
    // In one step, as an operator should: no look finds half a file.
    let new = folder.join(format!("{name}.new"));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, folder.join(name)).unwrap();
    Some(folder.join(name))
}

#[test]
fn each_role_needs_the_tokens_of_its_own_edges_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let token = |name: &str| file(folder.path(), name, format!("a-service-token-of-{name}\n").as_bytes());
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config
    };
    let all = with(&|config| config.service_token_file = token("all"));
    let single = |keys: &[&str]| {
        with(&|config| {
            let tokens = &mut config.service_tokens;
            for key in keys {
                match *key {
                    "gateway" => tokens.gateway_file = token("gateway"),
                    "runner" => tokens.runner_file = token("runner"),
                    "admin" => tokens.admin_file = token("admin"),
                    _ => tokens.calls_file = token("calls"),
                }
            }
        })
    };
    for role in [Some(Role::Gateway), Some(Role::Runner), Some(Role::Taskstore), None] {
        assert!(tokens(&all, role).is_ok(), "{role:?}");
        let Err(Wrong(what)) = tokens(&Config::default(), role) else { panic!("{role:?}") };
        assert!(what.contains("service_token_file"), "{what}");
    }
    for (role, own, others) in [
        (Some(Role::Gateway), &["gateway", "calls"][..], &["runner", "admin", "calls"][..]),
        (Some(Role::Runner), &["runner", "calls"], &["runner", "gateway", "admin"]),
        (Some(Role::Taskstore), &["gateway", "runner", "admin"], &["calls"]),
        (None, &["admin"], &["gateway", "runner", "calls"]),
    ] {
        assert!(tokens(&single(own), role).is_ok(), "{role:?}");
        assert!(tokens(&single(others), role).is_err(), "{role:?}");
    }
    let short = with(&|config| config.service_tokens.admin_file = file(folder.path(), "short", b"short"));
    let Err(Wrong(what)) = tokens(&short, None) else { panic!("a short one") };
    assert!(what.contains("service_tokens.admin"), "{what}");
    let missing = with(&|config| config.service_tokens.admin_file = Some(folder.path().join("none")));
    assert!(tokens(&missing, None).is_err());
}

#[test]
fn half_of_what_tls_needs_is_a_wrong_config() {
    let mut config = Config::default();
    assert!(tls(&config).is_ok_and(|tls| tls.is_none()));
    config.tls.cert_file = Some("/no/such/file".into());
    assert!(tls(&config).is_err_and(|Wrong(what)| what.contains("together")));
    (config.tls.key_file, config.tls.ca_file) = (Some("/no/such/key".into()), Some("/no/such/ca".into()));
    assert!(tls(&config).is_err_and(|Wrong(what)| what.contains("/no/such/file")));
}

#[tokio::test]
async fn a_certificate_that_changes_in_its_file_is_shown_from_then_on() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    let put = |Certificate { pem, key }: &Certificate, authority: &Authority| TlsConfig {
        ca_file: file(folder.path(), "ca.pem", &authority.pem),
        key_file: file(folder.path(), "key.pem", key),
        cert_file: file(folder.path(), "cert.pem", pem),
    };
    let config = Config { tls: put(&old.issue("taskstore"), &old), ..Config::default() };
    let own = tls(&config).unwrap().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let token = ServiceToken::new(["a-service-token-of-tests"]).unwrap();
    let target = |authority: &Authority| {
        let Certificate { pem, key } = authority.issue("gateway");
        Target {
            links: Links::default().with_tls(Some(Tls::new(&pem, &key, &authority.pem).unwrap())),
            urls: vec![format!("https://{}", listener.local_addr().unwrap())],
            token: token.clone(),
            payload_bytes_max: 0,
        }
    };
    let (before, after) = (target(&old), target(&new));
    let server = Server::new(token.clone(), 0, CancellationToken::new()).with_tls(Some(own.clone()));
    server.health().set(true).await;
    let files = Files::of(&config.tls).unwrap().unwrap();
    let often = Duration::from_millis(5);
    let steps = async {
        assert!(is_serving(&before).await.unwrap());
        assert!(is_serving(&after).await.is_err());
        // A key that does not fit changes nothing, until the rest is there.
        file(folder.path(), "key.pem", &new.issue("taskstore").key);
        tokio::time::sleep(often * 10).await;
        assert!(is_serving(&before).await.unwrap());
        put(&new.issue("taskstore"), &new);
        while is_serving(&after).await.is_err() {
            tokio::time::sleep(often).await;
        }
        assert!(is_serving(&before).await.is_err());
    };
    tokio::select! {
        never = follow(files, own, often) => match never {},
        served = server.serve(Listener::Tcp(listener)) => panic!("{served:?}"),
        done = tokio::time::timeout(Duration::from_secs(20), steps) => done.expect("the certificate follows its file"),
    }
}
