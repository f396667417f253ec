//! Answers, and journals, at rest: sealed, so that whoever reads the database, or a copy of it, reads no answer.

use longhaul_core::{InputResponse, Task};
use longhaul_seal::{Keyring, NONCE_BYTES};

/// How an answer is laid out, as its first byte. Never renumber: sealed ones may be on disk.
const ACCEPT: u8 = 1;
const ACCEPT_CONTENT: u8 = 2;
const DECLINE: u8 = 3;
const CANCEL: u8 = 4;
const RESULT: u8 = 5;

/// Seals what the n-th question of a task was answered.
pub(crate) fn seal(keyring: &Keyring, task: &Task, nth: u32, response: &InputResponse) -> Vec<u8> {
    let (kind, content): (_, &[u8]) = match response {
        InputResponse::Accept(None) => (ACCEPT, &[]),
        InputResponse::Accept(Some(content)) => (ACCEPT_CONTENT, content),
        InputResponse::Decline => (DECLINE, &[]),
        InputResponse::Cancel => (CANCEL, &[]),
        InputResponse::Result(result) => (RESULT, result),
    };
    keyring.seal_bytes(&bound_to(b"answer", task, nth), &[&[kind], content].concat(), nonce())
}

/// Seals the n-th entry of a task's journal, in which answers may be.
pub(crate) fn seal_entry(keyring: &Keyring, task: &Task, nth: u32, entry: &[u8]) -> Vec<u8> {
    keyring.seal_bytes(&bound_to(b"journal", task, nth), entry, nonce())
}

/// Opens what [`seal_entry`] made for the same place of the same task and owner.
pub(crate) fn open_entry(keyring: &Keyring, task: &Task, nth: u32, sealed: &[u8]) -> Option<Vec<u8>> {
    keyring.open_bytes(&bound_to(b"journal", task, nth), sealed)
}

fn nonce() -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).expect("invariant: the operating system has a random source");
    nonce
}

/// Opens what [`seal`] made for the same question of the same task and owner.
pub(crate) fn open(keyring: &Keyring, task: &Task, nth: u32, sealed: &[u8]) -> Option<InputResponse> {
    let mut plain = keyring.open_bytes(&bound_to(b"answer", task, nth), sealed)?;
    let content = plain.split_off(1.min(plain.len()));
    match (plain.as_slice(), content.is_empty()) {
        ([ACCEPT], true) => Some(InputResponse::Accept(None)),
        ([ACCEPT_CONTENT], _) => Some(InputResponse::Accept(Some(content.into()))),
        ([DECLINE], true) => Some(InputResponse::Decline),
        ([CANCEL], true) => Some(InputResponse::Cancel),
        ([RESULT], _) => Some(InputResponse::Result(content.into())),
        _ => None,
    }
}

/// Begins as no token of a client does, which the same keys seal. Lengths first, so that no two owners share a spelling.
fn bound_to(kind: &[u8], task: &Task, nth: u32) -> Vec<u8> {
    let mut bound = kind.to_vec();
    bound.extend_from_slice(&task.id.bits().to_be_bytes());
    bound.extend_from_slice(&nth.to_be_bytes());
    for name in [task.owner.tenant.as_str(), &task.owner.owner()] {
        bound.extend_from_slice(&(name.len() as u64).to_be_bytes());
        bound.extend_from_slice(name.as_bytes());
    }
    bound
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Caller, ClientCapabilities, Phase, Principal, Retry, TaskId, TenantId, Timestamp};
    use longhaul_seal::KEY_BYTES;

    use super::*;

    fn task(id: u128, tenant: &str, agent: &str) -> Task {
        Task {
            id: TaskId::from_random(id),
            owner: Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(agent.into()) },
            tool: "t".into(),
            phase: Phase::Queued,
            version: 1,
            attempt: 0,
            status_message: None,
            progress: None,
            progress_token: None,
            session: None,
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
            ttl_ms: None,
            client: ClientCapabilities::default(),
            retry: Retry::default(),
            inputs: Vec::new(),
            reserved: None,
            spent: None,
        }
    }

    #[test]
    fn an_answer_opens_for_its_own_question_task_and_owner_alone() {
        let keyring = |key: u8, former: &[[u8; KEY_BYTES]]| Keyring::new(&[key; KEY_BYTES], former);
        let here = task(1, "acme", "ann");
        for response in [
            InputResponse::Accept(None),
            InputResponse::Accept(Some("".into())),
            InputResponse::Accept(Some("{\"a\":\"c4n4ry\"}".into())),
            InputResponse::Decline,
            InputResponse::Cancel,
            InputResponse::Result("{\"c4n4ry\":1}".into()),
        ] {
            let sealed = seal(&keyring(1, &[]), &here, 3, &response);
            assert!(!sealed.windows(6).any(|window| window == b"c4n4ry"));
            assert_ne!(sealed, seal(&keyring(1, &[]), &here, 3, &response), "the nonce is random");
            assert_eq!(open(&keyring(1, &[]), &here, 3, &sealed).as_ref(), Some(&response));
            assert_eq!(open(&keyring(2, &[[1; KEY_BYTES]]), &here, 3, &sealed).as_ref(), Some(&response));
            assert_eq!(open(&keyring(2, &[]), &here, 3, &sealed), None);
            assert_eq!(open(&keyring(1, &[]), &here, 2, &sealed), None);
            for other in [task(2, "acme", "ann"), task(1, "umbrella", "ann"), task(1, "acme", "bob")] {
                assert_eq!(open(&keyring(1, &[]), &other, 3, &sealed), None);
            }
        }
    }
}
