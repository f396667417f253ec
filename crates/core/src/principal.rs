//! Who asks.

use crate::id::TenantId;

/// The owner of tasks: a caller in its tenant. Sessions, cursors and event ids are bound to it too.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The organisation.
    pub tenant: TenantId,
    /// Who in it.
    pub caller: Caller,
}

/// Either an agent by its own credential, or a person signed in to an app.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Caller {
    /// An agent credential, by its configured name.
    Agent(String),
    /// A person in an app; the same person in another app is another caller.
    Person {
        /// The app's client id.
        app: String,
        /// The person's subject, exactly as the issuer wrote it.
        person: String,
    },
}

impl Principal {
    /// The caller as one string, for storage: lengths first, so that no two callers share a spelling.
    pub fn owner(&self) -> String {
        self.caller.owner()
    }

    /// Reads what [`owner`](Self::owner) wrote.
    pub fn from_owner(tenant: TenantId, owner: &str) -> Option<Self> {
        Caller::from_owner(owner).map(|caller| Self { tenant, caller })
    }
}

impl Caller {
    /// As [`Principal::owner`].
    pub fn owner(&self) -> String {
        match self {
            Self::Agent(agent) => format!("agent:{}:{agent}", agent.len()),
            Self::Person { app, person } => format!("person:{}:{app}:{}:{person}", app.len(), person.len()),
        }
    }

    /// Reads what [`owner`](Self::owner) wrote.
    pub fn from_owner(owner: &str) -> Option<Self> {
        fn field(text: &str) -> Option<(&str, &str)> {
            let (length, rest) = text.split_once(':')?;
            rest.split_at_checked(length.parse().ok()?)
        }
        let (kind, rest) = owner.split_once(':')?;
        let (first, rest) = field(rest)?;
        Some(match kind {
            "agent" if rest.is_empty() => Self::Agent(first.to_owned()),
            "person" => {
                let (person, "") = field(rest.strip_prefix(':')?)? else { return None };
                Self::Person { app: first.to_owned(), person: person.to_owned() }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn person(app: &str, person: &str) -> Principal {
        Principal { tenant: TenantId::new("t"), caller: Caller::Person { app: app.into(), person: person.into() } }
    }

    #[test]
    fn no_two_callers_share_a_spelling() {
        let callers = [
            person("a", "b:c"),
            person("a:b", "c"),
            person("a:1:b", "c"),
            person("", "a"),
            person("a", ""),
            Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) },
            Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a:1:b".into()) },
            person("é", "ß"),
        ];
        for (at, one) in callers.iter().enumerate() {
            assert_eq!(Principal::from_owner(one.tenant.clone(), &one.owner()).as_ref(), Some(one));
            for other in &callers[at + 1..] {
                assert_ne!(one.owner(), other.owner());
            }
        }
    }

    #[test]
    fn other_text_is_no_owner() {
        for bad in [
            "",
            "agent",
            "agent:1:",
            "agent:1:ab",
            "agent:2:é",
            "agent:1:é",
            "person:1:a",
            "person:1:a:1:bc",
            "robot:1:a",
            "agent:-1:a",
        ] {
            let read = Principal::from_owner(TenantId::new("t"), bad);
            assert_eq!(read.is_some(), bad == "agent:2:é", "{bad}");
        }
    }
}
