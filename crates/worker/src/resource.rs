//! A resource, or a family of them: what it is called and what it holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use futures::future::BoxFuture;
use longhaul_core::{ResourceDef, TemplateDef};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::{Answer, Failure};
use crate::completion::Completions;
use crate::context::Context;
use crate::definition::Definition;
use crate::function::{Function, read};
use crate::template::Template;

/// The longest URI, or URI template, in bytes.
const URI_BYTES_MAX: usize = 2048;

type Read = dyn Fn(Context, Bytes) -> BoxFuture<'static, Result<Contents, Failure>> + Send + Sync;

/// A resource that a worker offers, or all that a URI template describes.
#[derive(Clone)]
pub struct Resource {
    definition: Definition,
    family: Family,
    read: Arc<Read>,
    timeout: Option<Duration>,
    completions: Completions,
}

/// What one definition stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    One,
    /// Those of a template of level 1.
    Matched,
    /// Those of any template, known by what it begins with.
    Prefixed,
}

/// As it is announced.
pub(crate) enum Announced {
    One(ResourceDef),
    Family(TemplateDef, Match),
}

/// Which URIs a family has.
#[derive(Debug, Clone)]
pub(crate) enum Match {
    Template(Template),
    Prefix(String),
}

impl Resource {
    /// The resource of this URI; `name` is for people and programs. Like a tool it may ask its caller
    /// ([`Context::request_input`]).
    pub fn new<F, R>(uri: impl Into<String>, name: impl Into<String>, read: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Contents, Failure>> + Send + 'static,
    {
        let read = move |context, _| -> BoxFuture<'static, _> { Box::pin(read(context)) };
        Self::build(Definition::default(), Family::One, Arc::new(read)).define("uri", uri).define("name", name)
    }

    /// All resources that a URI template describes: text and `{variables}` (RFC 6570, level 1). The variables of the URI,
    /// all of them strings, are read into a struct or a map; if they do not fit, there is no such resource. A resource of
    /// its own goes before a template, and of several templates the first that fits.
    pub fn template<V, F, R>(uri_template: impl Into<String>, name: impl Into<String>, read_one: F) -> Self
    where
        V: DeserializeOwned + Send + 'static,
        F: Fn(Context, V) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Contents, Failure>> + Send + 'static,
    {
        let read = move |context: Context, variables: Bytes| -> BoxFuture<'static, _> {
            match read::<V>(&variables) {
                Ok(variables) => Box::pin(read_one(context, variables)),
                Err(_) => Box::pin(std::future::ready(Err(Failure::resource_not_found(context.tool())))),
            }
        };
        Self::build(Definition::default(), Family::Matched, Arc::new(read))
            .define("uriTemplate", uri_template)
            .define("name", name)
    }

    /// A resource with a given MCP `Resource` object: for resources that are only known at run time. `read` is given the
    /// URI.
    pub fn raw<F, R>(definition: &[u8], read: F) -> Self
    where
        F: Fn(Context, String) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Contents, Failure>> + Send + 'static,
    {
        Self::build(Definition::read(definition), Family::One, of_uri(read))
    }

    /// A family with a given MCP `ResourceTemplate` object, of any level: for those that are only known at run time.
    /// `read` is given each URI that begins as the template does, up to its first variable, if nothing else fits it.
    pub fn raw_template<F, R>(definition: &[u8], read: F) -> Self
    where
        F: Fn(Context, String) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Contents, Failure>> + Send + 'static,
    {
        Self::build(Definition::read(definition), Family::Prefixed, of_uri(read))
    }

    fn build(definition: Definition, family: Family, read: Arc<Read>) -> Self {
        Self { definition, family, read, timeout: None, completions: Completions::default() }
    }

    fn define(mut self, member: &str, value: impl Into<String>) -> Self {
        self.definition.set(member, &value.into());
        self
    }

    /// What it is.
    pub fn description(self, description: impl Into<String>) -> Self {
        self.define("description", description)
    }

    /// A name for people.
    pub fn title(self, title: impl Into<String>) -> Self {
        self.define("title", title)
    }

    /// Its media type, which its contents have unless they say otherwise.
    pub fn media_type(self, media_type: impl Into<String>) -> Self {
        self.define("mimeType", media_type)
    }

    /// Hints for the client (MCP 2025-11-25 schema, `Annotations`).
    pub fn annotations(mut self, annotations: Value) -> Self {
        self.definition.set("annotations", &annotations);
        self
    }

    /// The definition's `_meta`.
    pub fn meta(mut self, meta: Value) -> Self {
        self.definition.set("_meta", &meta);
        self
    }

    /// How long reading may take, without the time it waits for its caller's answers.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Completes a variable of the template while people type it: `complete` is given what there is of the value, and the
    /// variables that are known already. Callers hear the first 100 values.
    pub fn complete<F, R>(mut self, variable: impl Into<String>, complete: F) -> Self
    where
        F: Fn(Context, String, HashMap<String, String>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<String>> + Send + 'static,
    {
        self.completions.add(variable.into(), complete);
        self
    }

    /// Completes all variables of the template: `complete` is given the `argument` and `context` of
    /// `completion/complete` as a raw JSON object, and answers with the JSON of the whole result.
    pub fn complete_raw<F, R>(mut self, complete: F) -> Self
    where
        F: Fn(Context, Bytes) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        self.completions.set_raw(complete);
        self
    }

    /// Its URI, or URI template.
    pub(crate) fn called(&self) -> String {
        self.definition.text(match self.family {
            Family::One => "uri",
            Family::Matched | Family::Prefixed => "uriTemplate",
        })
    }

    /// What the worker announces, or what is wrong with it.
    pub(crate) fn announce(&self) -> Result<Announced, String> {
        let definition = self.definition.write()?;
        let called = self.called();
        let odd = |at: char| at.is_control() || at.is_whitespace();
        if called.len() > URI_BYTES_MAX || !called.contains(':') || called.chars().any(odd) {
            return Err(format!("its URI must have a scheme, no white space, and at most {URI_BYTES_MAX} bytes"));
        }
        if self.definition.text("name").is_empty() {
            return Err("it must have a name".into());
        }
        if self.family == Family::One {
            return Ok(Announced::One(ResourceDef { uri: called, definition }));
        }
        let template = TemplateDef { uri_template: called, definition };
        let of = match self.family {
            Family::Matched => Match::Template(Template::read(&template.uri_template)?),
            Family::One | Family::Prefixed => Match::Prefix(template.literal().to_owned()),
        };
        Ok(Announced::Family(template, of))
    }

    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    pub(crate) fn function(&self) -> Function {
        let (read, media_type) = (self.read.clone(), self.definition.text("mimeType"));
        let handler = move |context: Context, variables| -> BoxFuture<'static, _> {
            let (uri, media_type) = (context.tool().to_owned(), media_type.clone());
            let reading = read(context, variables);
            // A resource has no contents that are an error.
            Box::pin(async move {
                let contents = reading.await;
                contents.and_then(|contents| contents.answer(&uri, &media_type)).map_err(Failure::into_protocol)
            })
        };
        Function { timeout: self.timeout, ..Function::new(self.called(), Arc::new(handler)) }
    }
}

fn of_uri<F, R>(read: F) -> Arc<Read>
where
    F: Fn(Context, String) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Contents, Failure>> + Send + 'static,
{
    Arc::new(move |context: Context, _| {
        let uri = context.tool().to_owned();
        Box::pin(read(context, uri))
    })
}

impl Match {
    /// The variables of a URI of the family, as JSON.
    pub(crate) fn variables(&self, uri: &str) -> Option<Bytes> {
        match self {
            Self::Template(template) => serde_json::to_vec(&template.variables(uri)?).ok().map(Bytes::from),
            Self::Prefix(prefix) => uri.starts_with(prefix).then(|| Bytes::from_static(b"{}")),
        }
    }
}

/// What a resource holds.
#[derive(Debug, Clone)]
pub struct Contents(Form);

#[derive(Debug, Clone)]
enum Form {
    Built(Vec<Part>),
    Raw(Bytes),
}

/// Text or bytes (MCP 2025-11-25 schema, `TextResourceContents`, `BlobResourceContents`).
#[derive(Debug, Clone, Default, Serialize)]
struct Part {
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    #[serde(rename = "mimeType", skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob: Option<String>,
}

impl Contents {
    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(Form::Built(vec![Part { text: Some(text.into()), ..Part::default() }]))
    }

    /// Bytes.
    pub fn blob(bytes: &[u8]) -> Self {
        Self(Form::Built(vec![Part { blob: Some(base64_of(bytes)), ..Part::default() }]))
    }

    /// The JSON of a whole `resources/read` result: an object, sent on byte for byte.
    pub fn raw(result: impl Into<Bytes>) -> Self {
        Self(Form::Raw(result.into()))
    }

    /// One more part: the text of another URI, such as a file of the directory that is read.
    pub fn with_text(self, uri: impl Into<String>, text: impl Into<String>) -> Self {
        self.with(Part { uri: Some(uri.into()), text: Some(text.into()), ..Part::default() })
    }

    /// One more part: the bytes of another URI.
    pub fn with_blob(self, uri: impl Into<String>, bytes: &[u8]) -> Self {
        self.with(Part { uri: Some(uri.into()), blob: Some(base64_of(bytes)), ..Part::default() })
    }

    /// The media type of the last part.
    pub fn media_type(mut self, media_type: impl Into<String>) -> Self {
        if let Form::Built(parts) = &mut self.0
            && let Some(last) = parts.last_mut()
        {
            last.media_type = Some(media_type.into());
        }
        self
    }

    fn with(mut self, part: Part) -> Self {
        if let Form::Built(parts) = &mut self.0 {
            parts.push(part);
        }
        self
    }

    fn answer(self, uri: &str, media_type: &str) -> Result<Answer, Failure> {
        #[derive(Serialize)]
        struct Body {
            contents: Vec<Part>,
        }
        let mut contents = match self.0 {
            Form::Built(parts) => parts,
            Form::Raw(body) => return Answer::raw(body),
        };
        for part in &mut contents {
            // What is said of the resource holds for its own parts.
            if part.uri.is_none() {
                part.uri = Some(uri.to_owned());
                let own = part.media_type.take();
                part.media_type = own.or_else(|| Some(media_type.to_owned()).filter(|known| !known.is_empty()));
            }
        }
        Ok(Answer::object(&Body { contents }))
    }
}

fn base64_of(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(uri: &str) -> Resource {
        Resource::new(uri, "n", async |_| Ok(Contents::text("")))
    }

    #[test]
    fn resources_and_templates_are_announced_as_mcp_writes_them() {
        let Ok(Announced::One(one)) = resource("demo://a").media_type("text/plain").announce() else { panic!() };
        assert_eq!(
            (one.uri.as_str(), &one.definition[..]),
            ("demo://a", &br#"{"uri":"demo://a","name":"n","mimeType":"text/plain"}"#[..])
        );
        let template =
            Resource::template("demo://{x}", "n", async |_, _: HashMap<String, String>| Ok(Contents::text("")));
        let Ok(Announced::Family(family, Match::Template(_))) = template.announce() else { panic!() };
        assert_eq!(family.definition, r#"{"uriTemplate":"demo://{x}","name":"n"}"#);
        let raw = br#"{"uriTemplate":"up://{+path}{?q}","name":"n","odd":1.10}"#;
        let raw = Resource::raw_template(raw, async |_, _| Ok(Contents::raw("{}")));
        let Ok(Announced::Family(_, of)) = raw.announce() else { panic!() };
        assert_eq!((of.variables("up://a/b?q=1").as_deref(), of.variables("down://a")), (Some(&b"{}"[..]), None));
    }

    #[test]
    fn a_resource_that_cannot_be_offered_says_why() {
        for uri in ["", "plain", "a: b", &format!("a:{}", "x".repeat(URI_BYTES_MAX))] {
            assert!(resource(uri).announce().is_err_and(|why| why.contains("URI")), "{uri}");
        }
        let template = Resource::template("a:{+b}", "n", async |_, ()| Ok(Contents::text("")));
        assert!(template.announce().is_err_and(|why| why.contains("{+b}")));
        assert!(Resource::raw(br#"{"uri":"a:b"}"#, async |_, _| Ok(Contents::text(""))).announce().is_err());
    }
}
