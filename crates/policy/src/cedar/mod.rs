//! Who may do what: Cedar policies.
//!
//! A folder holds policies (`*.cedar`), entities (`entities.json`, say agents in groups) and further types
//! (`*.cedarschema`). They are validated strictly, and looked at again as they change. What a policy cannot decide is
//! denied: one that fails is as good as one that says no.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::str::FromStr as _;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid, PolicyId, PolicySet, Request,
    Response, RestrictedExpression, Schema, SchemaFragment, ValidationMode, Validator,
};
use chrono::{DateTime, SecondsFormat};
use longhaul_core::{Caller, Check, Clock, Denied, Principal, Target};
use longhaul_rpc::Error;
use sha2::{Digest as _, Sha256};

use crate::chain::{Call, Source, denied};
use crate::files::{LOOK, Texts, Watched};

/// Entities of operators.
const ENTITIES_MAX: usize = 1000;
/// Policies of one installation.
const POLICIES_MAX: usize = 10_000;
/// Pairs of a principal and a resource that are kept ready.
const PAIRS_MAX: usize = 1000;
/// What policies may speak of.
const SCHEMA: &str = include_str!("longhaul.cedarschema");
/// What is in force without a folder.
const DEFAULT: &str = include_str!("default.cedar");

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Call a tool.
    CallTool,
    /// Have a call become a task; asked beside [`CallTool`](Self::CallTool).
    CreateTask,
    /// Get a prompt, or complete its arguments.
    GetPrompt,
    /// Read a resource, or complete the variables of its template.
    ReadResource,
    /// Answer what a tool asks.
    Answer,
    /// Cancel a task. Never asked: whoever has a task may cancel it.
    Cancel,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::CallTool, Self::CreateTask, Self::GetPrompt, Self::ReadResource, Self::Answer, Self::Cancel];

    /// Its name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CallTool => "call_tool",
            Self::CreateTask => "create_task",
            Self::GetPrompt => "get_prompt",
            Self::ReadResource => "read_resource",
            Self::Answer => "answer",
            Self::Cancel => "cancel",
        }
    }

    /// The action of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }

    /// What a call of this is.
    pub(crate) const fn of(target: &Target) -> Self {
        match target {
            Target::Tool(_) => Self::CallTool,
            Target::Prompt(_) | Target::CompletePrompt(_) => Self::GetPrompt,
            Target::Resource(_) | Target::CompleteTemplate(_) => Self::ReadResource,
        }
    }

    const fn has_arguments(self) -> bool {
        match self {
            Self::CallTool | Self::CreateTask | Self::GetPrompt | Self::ReadResource => true,
            Self::Answer | Self::Cancel => false,
        }
    }
}

/// The policies in force.
pub struct Policies {
    from: From,
    clock: Arc<dyn Clock>,
}

enum From {
    Folder(Watched<Set>),
    Nowhere(Arc<Set>),
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            From::Folder(files) => files.fmt(f),
            From::Nowhere(_) => f.write_str("the default policy"),
        }
    }
}

/// The tags of tools, by the tools' names.
pub type Tags = BTreeMap<String, Vec<String>>;

/// Why a question is decided as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The policies that decide: their `@id`, or their file and number.
    pub policies: Vec<String>,
    /// The policies that fail, and how: each denies.
    pub errors: Vec<String>,
}

impl Policies {
    /// The policies of a folder; the error says which file is wrong and how.
    pub fn read(folder: &Path, tags: Tags, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let files = Watched::read("policies", folder, move |texts| Set::parse(texts, &tags))?;
        Ok(Self { from: From::Folder(files), clock })
    }

    /// The policy that is in force without a folder: whoever is known may do everything.
    pub fn unset(tags: &Tags, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let set = Set::parse(&vec![("default.cedar".into(), DEFAULT.into())], tags)?;
        Ok(Self { from: From::Nowhere(Arc::new(set)), clock })
    }

    /// What is wrong with the files as they are now, if they cannot be used.
    pub fn stale(&self) -> Option<String> {
        match &self.from {
            From::Folder(files) => files.stale(),
            From::Nowhere(_) => None,
        }
    }

    /// Takes over what changes in the folder.
    pub async fn follow(&self) -> Infallible {
        match &self.from {
            From::Folder(files) => files.follow(LOOK).await,
            From::Nowhere(_) => std::future::pending().await,
        }
    }

    fn set(&self) -> Arc<Set> {
        match &self.from {
            From::Folder(files) => files.load(),
            From::Nowhere(set) => set.clone(),
        }
    }

    /// Says why a question would be decided as it is, now.
    pub fn explain(
        &self,
        action: Action,
        principal: &Principal,
        target: &Target,
        call: Option<&Call>,
    ) -> Result<Explanation, String> {
        let set = self.set();
        let response = set.decide(action, principal, target, call, &*self.clock)?;
        Ok(Explanation {
            allowed: is_allowed(&response),
            policies: sorted(response.diagnostics().reason().map(ToString::to_string)),
            errors: sorted(response.diagnostics().errors().map(ToString::to_string)),
        })
    }

    pub(crate) fn check(
        &self,
        action: Action,
        principal: &Principal,
        target: &Target,
        call: Option<&Call>,
    ) -> Result<(), Error> {
        let set = self.set();
        let response = set.decide(action, principal, target, call, &*self.clock);
        let response = response.map_err(|error| Error::Unavailable(format!("the policies: {error}")))?;
        if is_allowed(&response) {
            return Ok(());
        }
        for error in response.diagnostics().errors() {
            tracing::warn!(%error, "a policy fails, and so denies");
        }
        let message = match action {
            Action::Answer => "You may no longer answer for this tool: ask your operator".into(),
            Action::Cancel => "You may not cancel this: ask your operator".into(),
            Action::CreateTask => "You may not call this as a task: ask your operator".into(),
            Action::CallTool => "You may not call this tool: ask your operator".into(),
            Action::GetPrompt => "You may not use this prompt: ask your operator".into(),
            Action::ReadResource => "You may not read this resource: ask your operator".into(),
        };
        Err(denied(Denied { by: Check::Policy, message, retry_after: None }))
    }
}

/// Cedar passes over a policy that fails, a forbidding one too: here it denies.
fn is_allowed(response: &Response) -> bool {
    response.decision() == Decision::Allow && response.diagnostics().errors().next().is_none()
}

fn sorted(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts
}

/// Policies that were validated together.
struct Set {
    policies: PolicySet,
    entities: Entities,
    tags: Tags,
    /// Whether any policy asks for the digest of the arguments.
    wants_digest: bool,
    pairs: Mutex<HashMap<(Principal, Target), Arc<Entities>>>,
}

impl Set {
    fn parse(texts: &Texts, tags: &Tags) -> Result<Self, String> {
        let (mut fragments, mut policies) = (vec![fragment("the built-in schema", SCHEMA)?], PolicySet::new());
        let (mut entities, mut wants_digest) = ("[]", false);
        for (name, text) in texts {
            match name.rsplit_once('.') {
                Some((_, "cedarschema")) => fragments.push(fragment(name, text)?),
                Some((_, "cedar")) => {
                    add(&mut policies, name, text)?;
                    wants_digest |= text.contains("arguments_digest");
                }
                _ if name == "entities.json" => entities = text,
                _ => return Err(format!("{name}: neither *.cedar, nor *.cedarschema, nor entities.json")),
            }
        }
        if policies.is_empty() {
            return Err("no policy: nobody could do anything".into());
        }
        if policies.num_of_policies() > POLICIES_MAX {
            return Err(format!("more than {POLICIES_MAX} policies"));
        }
        let schema = Schema::from_schema_fragments(fragments).map_err(|error| full(&error))?;
        let entities = Entities::from_json_str(entities, Some(&schema));
        let entities = entities.map_err(|error| format!("entities.json: {}", full(&error)))?;
        if entities.len() > ENTITIES_MAX {
            return Err(format!("entities.json: more than {ENTITIES_MAX} entities"));
        }
        let validated = Validator::new(schema).validate(&policies, ValidationMode::Strict);
        if let Some(error) = validated.validation_errors().next() {
            return Err(error.to_string());
        }
        Ok(Self { policies, entities, tags: tags.clone(), wants_digest, pairs: Mutex::default() })
    }

    fn decide(
        &self,
        action: Action,
        principal: &Principal,
        target: &Target,
        call: Option<&Call>,
        clock: &dyn Clock,
    ) -> Result<Response, String> {
        let now = DateTime::from_timestamp_micros(clock.now().as_micros()).ok_or("a time that cannot be")?;
        let now = now.to_rfc3339_opts(SecondsFormat::Millis, true);
        let source = call.map_or(Source::Client, |call| call.source);
        let mut circumstances = vec![
            ("time".to_owned(), RestrictedExpression::new_datetime(now)),
            ("source".to_owned(), RestrictedExpression::new_string(source.name().to_owned())),
        ];
        if action.has_arguments() {
            let digest = call.filter(|_| self.wants_digest).map_or_else(String::new, |call| digest(&call.arguments));
            circumstances.push(("arguments_digest".to_owned(), RestrictedExpression::new_string(digest)));
        }
        let context = Context::from_pairs(circumstances).map_err(|error| full(&error))?;
        let action = uid(&TYPES.action, action.name());
        let request =
            Request::new(asker(principal), action, asked(target), context, None).map_err(|error| full(&error))?;
        let entities = self.entities_for(principal, target)?;
        Ok(Authorizer::new().is_authorized(&request, &self.policies, &entities))
    }

    /// The operator's entities, and those of a call.
    fn entities_for(&self, principal: &Principal, target: &Target) -> Result<Arc<Entities>, String> {
        let pair = (principal.clone(), target.clone());
        if let Some(entities) = self.pairs.lock().unwrap_or_else(PoisonError::into_inner).get(&pair) {
            return Ok(entities.clone());
        }
        let both = [self.principal(principal)?, self.resource(target)?];
        let entities = self.entities.clone().upsert_entities(both, None).map_err(|error| full(&error))?;
        let entities = Arc::new(entities);
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.len() >= PAIRS_MAX {
            pairs.clear();
        }
        pairs.insert(pair, entities.clone());
        Ok(entities)
    }

    fn principal(&self, principal: &Principal) -> Result<Entity, String> {
        let tenant = uid(&TYPES.tenant, &escaped(&[principal.tenant.as_str()]));
        let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
        let mut attributes = HashMap::from([("tenant".into(), RestrictedExpression::new_entity_uid(tenant.clone()))]);
        let mut parents = HashSet::from([tenant]);
        match &principal.caller {
            Caller::Agent(name) => {
                attributes.insert("name".to_owned(), text(name));
            }
            Caller::Person { app, person } => {
                parents.insert(uid(&TYPES.app, &escaped(&[principal.tenant.as_str(), app])));
                attributes.insert("app".to_owned(), text(app));
                attributes.insert("person".to_owned(), text(person));
            }
        }
        self.entity(asker(principal), attributes, parents)
    }

    fn resource(&self, target: &Target) -> Result<Entity, String> {
        let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
        let attributes = match target {
            Target::Tool(name) => {
                let tags = self.tags.get(name).into_iter().flatten().map(|tag| text(tag));
                HashMap::from([
                    ("name".into(), text(name)),
                    ("tags".into(), RestrictedExpression::new_set(tags.collect::<Vec<_>>())),
                ])
            }
            Target::Prompt(name) | Target::CompletePrompt(name) => HashMap::from([("name".into(), text(name))]),
            Target::Resource(uri) | Target::CompleteTemplate(uri) => HashMap::from([("uri".into(), text(uri))]),
        };
        self.entity(asked(target), attributes, HashSet::new())
    }

    /// An entity; the operator's may have put it into groups.
    fn entity(
        &self,
        uid: EntityUid,
        attributes: HashMap<String, RestrictedExpression>,
        mut parents: HashSet<EntityUid>,
    ) -> Result<Entity, String> {
        if let Some(known) = self.entities.get(&uid) {
            parents.extend(known.clone().into_inner().2);
        }
        Entity::new(uid, attributes, parents).map_err(|error| full(&error))
    }
}

fn fragment(name: &str, text: &str) -> Result<SchemaFragment, String> {
    let parsed = SchemaFragment::from_cedarschema_str(text);
    parsed.map(|(fragment, _)| fragment).map_err(|error| format!("{name}: {}", full(&error)))
}

/// Adds the policies of a file, each under a name that tells where it is.
fn add(policies: &mut PolicySet, name: &str, text: &str) -> Result<(), String> {
    let wrong = |error: &dyn std::error::Error| format!("{name}: {}", full(error));
    let parsed = PolicySet::from_str(text).map_err(|error| wrong(&error))?;
    if parsed.templates().next().is_some() {
        return Err(format!("{name}: templates cannot be used"));
    }
    for policy in parsed.policies() {
        let nth = policy.id().to_string().trim_start_matches("policy").parse::<usize>().map_or(0, |nth| nth + 1);
        let id = policy.annotation("id").map_or_else(|| format!("{name}#{nth}"), ToOwned::to_owned);
        policies.add(policy.new_id(PolicyId::new(id))).map_err(|error| wrong(&error))?;
    }
    Ok(())
}

/// An error with what caused it.
fn full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

struct Types {
    action: EntityTypeName,
    tenant: EntityTypeName,
    app: EntityTypeName,
    agent: EntityTypeName,
    person: EntityTypeName,
    tool: EntityTypeName,
    prompt: EntityTypeName,
    resource: EntityTypeName,
}

static TYPES: LazyLock<Types> = LazyLock::new(|| {
    let name = |name| EntityTypeName::from_str(name).expect("invariant: the name of a type");
    Types {
        action: name("Action"),
        tenant: name("Tenant"),
        app: name("App"),
        agent: name("Agent"),
        person: name("Person"),
        tool: name("Tool"),
        prompt: name("Prompt"),
        resource: name("Resource"),
    }
});

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// Names as one id: what stands between them does not stand in them.
fn escaped(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| name.replace('%', "%25").replace('/', "%2F")).collect();
    names.join("/")
}

fn asker(principal: &Principal) -> EntityUid {
    let tenant = principal.tenant.as_str();
    match &principal.caller {
        Caller::Agent(name) => uid(&TYPES.agent, &escaped(&[tenant, name])),
        Caller::Person { app, person } => uid(&TYPES.person, &escaped(&[tenant, app, person])),
    }
}

fn asked(target: &Target) -> EntityUid {
    let kind = match target {
        Target::Tool(_) => &TYPES.tool,
        Target::Prompt(_) | Target::CompletePrompt(_) => &TYPES.prompt,
        Target::Resource(_) | Target::CompleteTemplate(_) => &TYPES.resource,
    };
    uid(kind, target.name())
}

fn digest(arguments: &[u8]) -> String {
    Sha256::digest(arguments).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
