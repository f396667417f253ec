//! Calls that need something of their client before they can go on: it is told what, and comes back with it in another
//! request, to whatever replica (MCP 2026-07-28, basic/patterns/mrtr).

use bytes::Bytes;
use http::StatusCode;
use longhaul_core::{ClientCapabilities, InputRequest, InputResponse, Question, Target};
use longhaul_mcp::errors::{Denial, code};
use longhaul_mcp::seal::RequestState;
use longhaul_mcp::{QuestionKind, Reply, RpcError, canonical, input_response};
use longhaul_rpc::Resume;
use sha2::{Digest as _, Sha256};

use super::feed::End;
use super::run::{Run, Start};
use super::{Wanted, askable, line, worker};
use crate::catalogue::Worker;
use crate::endpoint::{Asked, No};

/// What tells a call from every other: what is called, and with which arguments, however they are spelt.
pub(crate) fn digest(target: &Target, arguments: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in [target.method().as_bytes(), target.name().as_bytes(), &canonical(arguments)] {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

/// Where to go on for a client that comes back with `state` and these answers.
pub(super) async fn again(
    asked: &Asked,
    wanted: &Wanted,
    state: &str,
    responses: &[(String, Bytes)],
) -> Result<Start, No> {
    let Asked { shared, principal, .. } = asked;
    let state: Option<RequestState> = shared.open(principal, state);
    let state = state.filter(|state| state.call == wanted.digest).ok_or_else(|| asked.deny(Denial::BadState))?;
    let answers = answers(&state.keys, responses).map_err(|key| {
        No::Denied(RpcError::new(code::INVALID_PARAMS, format!("Invalid input response: {key}")).into())
    })?;
    let worker = worker(shared, &state.worker).await;
    let worker = worker.map_err(|error| asked.failed(error))?.ok_or_else(|| asked.deny(Denial::RunLost))?;
    let resume = Resume {
        principal: (**principal).clone(),
        run: state.run,
        round: state.round,
        answers,
        client: askable(asked, wanted),
        line: line(asked, wanted),
    };
    Ok(Start::Again { worker, resume })
}

/// The answers to what was asked, or the key of one that is none. Whatever else is there is ignored.
fn answers(
    asked: &[(String, QuestionKind)],
    responses: &[(String, Bytes)],
) -> Result<Vec<(String, InputResponse)>, String> {
    let kind_of = |key: &str| asked.iter().find(|(asked, _)| asked == key).map(|(_, kind)| *kind);
    responses
        .iter()
        .filter_map(|(key, response)| Some((key, response, kind_of(key)?)))
        .map(|(key, response, kind)| {
            let response = std::str::from_utf8(response).ok().and_then(|text| input_response(kind, text));
            response.map(|response| (key.clone(), response)).ok_or_else(|| key.clone())
        })
        .collect()
}

impl Run {
    /// The run is parked: tells its client what it needs, and what to come back with.
    pub(super) fn input_required(&self, worker: &Worker, asking: &longhaul_rpc::Asked) -> End {
        let Asked { shared, principal, .. } = self.asked();
        let client = self.askable();
        // The worker declines for its client what that cannot be asked; nothing else may be shown.
        let is_askable = |request: &&InputRequest| client.can_answer(&request.question);
        let requests: Vec<InputRequest> = asking.requests.iter().filter(is_askable).cloned().collect();
        if requests.is_empty() {
            let questions = asking.requests.iter().map(|request| &request.question);
            return self.denied(&Denial::MissingCapability(client.missing(needed(questions))));
        }
        requests.iter().for_each(|_| shared.metrics.asked("input_required"));
        let state = RequestState {
            worker: worker.id.clone(),
            run: asking.run.clone(),
            round: asking.round,
            call: self.digest(),
            keys: requests.iter().map(|request| (request.key.clone(), QuestionKind::of(&request.question))).collect(),
            expires_at: shared.clock.now().plus(shared.config.input_timeout),
        };
        let state = shared.seal(principal, &state);
        let body = self.asked().write(&Reply::InputRequired { requests: &requests, state: &state });
        End::Message { status: StatusCode::OK, body, how: crate::metrics::Ended::Well, task: None }
    }
}

/// What a client must be able to be asked to answer these.
fn needed<'a>(questions: impl Iterator<Item = &'a Question>) -> ClientCapabilities {
    let mut needed = ClientCapabilities::default();
    for question in questions {
        match question {
            Question::Form { .. } => needed.elicitation_form = true,
            Question::Url { .. } => needed.elicitation_url = true,
            Question::Sample { .. } => needed.sampling = true,
            Question::Roots => needed.roots = true,
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_by_what_it_means_and_not_by_how_it_is_spelt() {
        let tool = |name: &str| Target::Tool(name.into());
        let same = digest(&tool("a"), br#"{"x":1,"y":[true]}"#);
        assert_eq!(digest(&tool("a"), br#"{ "y" : [ true ], "\u0078": 1.0 }"#), same);
        for other in [
            digest(&tool("b"), br#"{"x":1,"y":[true]}"#),
            digest(&Target::Prompt("a".into()), br#"{"x":1,"y":[true]}"#),
            digest(&tool("a"), br#"{"x":2,"y":[true]}"#),
            digest(&tool("a"), b"{}"),
        ] {
            assert_ne!(other, same);
        }
    }

    #[test]
    fn answers_are_read_by_the_kind_of_their_question_and_others_are_ignored() {
        let asked = [("f".to_owned(), QuestionKind::Elicitation), ("r".to_owned(), QuestionKind::Roots)];
        let read = |responses: &[(&str, &str)]| {
            let responses: Vec<_> =
                responses.iter().map(|(key, text)| ((*key).to_owned(), Bytes::from((*text).to_owned()))).collect();
            answers(&asked, &responses)
        };
        assert_eq!(read(&[]), Ok(Vec::new()));
        assert_eq!(read(&[("unknown", "7")]), Ok(Vec::new()));
        let roots = r#"{"roots":[]}"#;
        assert_eq!(
            read(&[("r", roots), ("f", r#"{"action":"decline"}"#)]),
            Ok(vec![
                ("r".to_owned(), InputResponse::Result(Bytes::from_static(roots.as_bytes()))),
                ("f".to_owned(), InputResponse::Decline)
            ])
        );
        for (key, bad) in [("f", "7"), ("f", roots), ("r", r#"{"action":"accept"}"#)] {
            assert_eq!(read(&[(key, bad)]), Err(key.to_owned()), "{bad}");
        }
    }
}
