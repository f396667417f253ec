//! An issuer of tokens over HTTP: its keys, its metadata, and what it signs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents,
};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

/// A key pair and its name.
pub enum Key {
    /// For ES256.
    Ec(String, EcdsaKeyPair),
    /// For RS256.
    Rsa(String, RsaKeyPair),
}

impl Key {
    /// A new key for ES256.
    pub fn ec(kid: &str) -> Self {
        Self::Ec(kid.to_owned(), EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    /// A new key for RS256.
    pub fn rsa(kid: &str) -> Self {
        Self::Rsa(kid.to_owned(), RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    /// Its header.
    pub fn header(&self) -> Value {
        match self {
            Self::Ec(kid, _) => json!({"alg": "ES256", "kid": kid, "typ": "at+jwt"}),
            Self::Rsa(kid, _) => json!({"alg": "RS256", "kid": kid, "typ": "at+jwt"}),
        }
    }

    /// The public key as the issuer publishes it.
    pub fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ec(kid, pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig", "x": text(x), "y": text(y)})
            }
            Self::Rsa(kid, pair) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "kid": kid, "use": "sig", "n": text(&public.n), "e": text(&public.e)})
            }
        }
    }

    /// The public key as whoever mistakes it for a shared secret would use it.
    pub fn public_der(&self) -> Vec<u8> {
        match self {
            Self::Ec(_, pair) => pair.public_key().as_ref().to_vec(),
            Self::Rsa(_, pair) => pair.public_key().as_der().unwrap().as_ref().to_vec(),
        }
    }

    /// A token with its own header.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_under(&self.header(), claims)
    }

    /// A token with any header.
    pub fn sign_under(&self, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ec(_, pair) => pair.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec(),
            Self::Rsa(_, pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// What a signature is for.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}", part(header), part(claims))
}

/// An issuer that runs as long as its runtime.
pub struct Issuer {
    /// Its name and where it is.
    pub url: String,
    /// What it answers.
    pub state: Arc<Answers>,
}

/// What an issuer answers.
#[derive(Default)]
pub struct Answers {
    /// The keys that it publishes.
    pub keys: Mutex<Vec<Value>>,
    /// How often it was asked for them.
    pub fetches: AtomicUsize,
    /// It fails.
    pub down: AtomicBool,
    /// Its metadata.
    pub metadata: Mutex<Value>,
}

impl Issuer {
    /// Starts one that publishes the keys.
    pub async fn start(keys: &[&Key]) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Answers::default());
        *state.metadata.lock().unwrap() = json!({"issuer": url, "jwks_uri": format!("{url}/keys")});
        let issuer = Self { url, state: state.clone() };
        issuer.publish(keys);
        let router = Router::new()
            .route("/keys", get(answer_keys))
            .route("/.well-known/openid-configuration", get(answer_metadata))
            .with_state(state);
        TaskTracker::new().spawn(async move { axum::serve(listener, router).await });
        issuer
    }

    /// Publishes other keys.
    pub fn publish(&self, keys: &[&Key]) {
        *self.state.keys.lock().unwrap() = keys.iter().map(|key| key.jwk()).collect();
    }

    /// How often it was asked for its keys.
    pub fn fetches(&self) -> usize {
        self.state.fetches.load(Ordering::SeqCst)
    }

    /// Whether it fails from now on.
    pub fn fail(&self, fail: bool) {
        self.state.down.store(fail, Ordering::SeqCst);
    }
}

async fn answer_keys(State(state): State<Arc<Answers>>) -> (StatusCode, String) {
    state.fetches.fetch_add(1, Ordering::SeqCst);
    if state.down.load(Ordering::SeqCst) {
        return (StatusCode::INTERNAL_SERVER_ERROR, String::new());
    }
    (StatusCode::OK, json!({"keys": *state.keys.lock().unwrap()}).to_string())
}

async fn answer_metadata(State(state): State<Arc<Answers>>) -> String {
    state.metadata.lock().unwrap().to_string()
}
