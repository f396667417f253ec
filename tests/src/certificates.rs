//! Certificates for tests, made on the spot: as much of X.509 (RFC 5280) as it takes.

use std::sync::atomic::{AtomicU8, Ordering};

use aws_lc_rs::encoding::{AsBigEndian as _, AsDer as _, EcPrivateKeyBin, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// From when certificates are good, and until when: long before and after any test.
const FROM: &str = "200101000000Z";
const UNTIL: &str = "491231235959Z";

static SERIAL: AtomicU8 = AtomicU8::new(1);

/// An authority.
pub struct Authority {
    name: String,
    key: EcdsaKeyPair,
    /// Its own certificate in PEM.
    pub pem: Vec<u8>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Certificate {
    /// The certificate.
    pub pem: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
}

impl Authority {
    /// A new authority.
    pub fn new(name: &str) -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        // basicConstraints: it may sign others.
        let constraints = extension(&[0x55, 0x1d, 0x13], true, &sequence(&[tagged(0x01, &[0xff])]));
        let pem = certificate(name, &key, name, &key, UNTIL, &constraints);
        Self { name: name.to_owned(), key, pem }
    }

    /// A certificate with a URI or a DNS name.
    pub fn issue(&self, name: &str) -> Certificate {
        self.issue_until(name, UNTIL)
    }

    /// One that expires then, or has expired: `YYMMDDHHMMSSZ`.
    pub fn issue_until(&self, name: &str, until: &str) -> Certificate {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let tag = if name.contains("://") { 0x86 } else { 0x82 };
        let names = extension(&[0x55, 0x1d, 0x11], false, &sequence(&[tagged(tag, name.as_bytes())]));
        let pem = certificate(name, &key, &self.name, &self.key, until, &names);
        Certificate { pem, key: armoured("EC PRIVATE KEY", &private_key(&key)) }
    }
}

fn private_key(key: &EcdsaKeyPair) -> Vec<u8> {
    // SEC 1: version 1, the key, and the name of the curve.
    let secret: EcPrivateKeyBin<'_> = key.private_key().as_be_bytes().unwrap();
    let curve = tagged(0xa0, &tagged(0x06, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07]));
    sequence(&[tagged(0x02, &[1]), tagged(0x04, secret.as_ref()), curve])
}

fn certificate(
    subject: &str,
    key: &EcdsaKeyPair,
    issuer: &str,
    by: &EcdsaKeyPair,
    until: &str,
    extension: &[u8],
) -> Vec<u8> {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) & 0x7f;
    let with_sha256 = sequence(&[tagged(0x06, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02])]);
    let public: PublicKeyX509Der<'_> = key.public_key().as_der().unwrap();
    let signed = sequence(&[
        tagged(0xa0, &tagged(0x02, &[2])),
        tagged(0x02, &[1, serial]),
        with_sha256.clone(),
        named(issuer),
        sequence(&[tagged(0x17, FROM.as_bytes()), tagged(0x17, until.as_bytes())]),
        named(subject),
        public.as_ref().to_vec(),
        tagged(0xa3, &sequence(&[extension.to_vec()])),
    ]);
    let signature = by.sign(&SystemRandom::new(), &signed).unwrap();
    let signature = tagged(0x03, &[&[0], signature.as_ref()].concat());
    armoured("CERTIFICATE", &sequence(&[signed, with_sha256, signature]))
}

fn named(name: &str) -> Vec<u8> {
    let common_name = sequence(&[tagged(0x06, &[0x55, 0x04, 0x03]), tagged(0x0c, name.as_bytes())]);
    sequence(&[tagged(0x31, &common_name)])
}

fn extension(id: &[u8], is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if is_critical { tagged(0x01, &[0xff]) } else { Vec::new() };
    sequence(&[tagged(0x06, id), critical, tagged(0x04, value)])
}

fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tagged(0x30, &parts.concat())
}

fn tagged(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = match value.len() {
        short @ 0..=127 => vec![short as u8],
        middle @ 128..=255 => vec![0x81, middle as u8],
        long => [&[0x82], &(long as u16).to_be_bytes()[..]].concat(),
    };
    [&[tag], &length[..], value].concat()
}

fn armoured(what: &str, der: &[u8]) -> Vec<u8> {
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", STANDARD.encode(der)).into_bytes()
}
