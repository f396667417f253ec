//! What a worker announces of a tool, a prompt or a resource: an MCP object, member by member.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::json::Members;

/// The largest definition of one thing, in bytes.
pub(crate) const DEFINITION_BYTES_MAX: usize = 256 * 1024;

/// A definition under construction.
#[derive(Clone, Default)]
pub(crate) struct Definition {
    members: Members,
    /// What is wrong with its making; said when it is given to a worker.
    pub(crate) problem: Option<String>,
}

impl Definition {
    /// Reads a whole MCP object; unknown members and exact numbers stay.
    pub(crate) fn read(json: &[u8]) -> Self {
        match Members::read(json) {
            Ok(members) => Self { members, problem: None },
            Err(error) => {
                Self { members: Members::default(), problem: Some(format!("its definition cannot be read: {error}")) }
            }
        }
    }

    pub(crate) fn get(&self, member: &str) -> Option<&RawValue> {
        self.members.get(member)
    }

    /// A member that is a string; empty if it is not there.
    pub(crate) fn text(&self, member: &str) -> String {
        self.get(member).and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
    }

    pub(crate) fn set<T: Serialize + ?Sized>(&mut self, member: &str, value: &T) {
        match to_raw_value(value) {
            Ok(json) => self.members.set(member, json),
            Err(error) => self.problem = Some(format!("its {member} has no JSON: {error}")),
        }
    }

    pub(crate) fn remove(&mut self, member: &str) {
        self.members.remove(member);
    }

    /// The MCP object, or what is wrong with it.
    pub(crate) fn write(&self) -> Result<Bytes, String> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let json = serde_json::to_vec(&self.members).map_err(|error| error.to_string())?;
        if json.len() > DEFINITION_BYTES_MAX {
            return Err(format!("its definition is larger than {DEFINITION_BYTES_MAX} bytes"));
        }
        Ok(json.into())
    }
}
