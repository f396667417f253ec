//! What an upstream server offers, as offers of our worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_worker::{Answer, Contents, Context, Failure, Messages, Offer, Prompt, Resource, Tool};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::{call, failure};
use crate::config::UpstreamConfig;
use crate::upstream::Upstream;
use crate::wire::{self, INVALID_PARAMS, Listed, Listing, Mirror, Reference, Request};

/// How long a completion may take: somebody is typing.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(10);

/// An upstream server and how its things are called here.
#[derive(Clone)]
pub(crate) struct Wrapped {
    pub(crate) upstream: Arc<Upstream>,
    config: Arc<UpstreamConfig>,
    /// Before its URIs and URI templates.
    pub(crate) prefix: Arc<str>,
}

/// Something that can be offered.
pub(crate) struct Entry {
    pub(crate) listing: Listing,
    /// What it is called here.
    pub(crate) name: String,
    /// What of it is announced, in bytes.
    pub(crate) bytes: usize,
    pub(crate) offer: Offer,
}

impl Wrapped {
    pub(crate) fn new(upstream: Arc<Upstream>, config: &UpstreamConfig) -> Self {
        let prefix = format!("{}+", config.scheme()).into();
        Self { upstream, config: Arc::new(config.clone()), prefix }
    }

    /// All that the server offers, as far as it can be passed on.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let offer = self.upstream.offer().borrow().clone();
        let entry = |listing: Listing, name: String, listed: &Listed, offer: Offer| Entry {
            listing,
            bytes: name.len() + listed.definition.len(),
            name,
            offer,
        };
        let mut entries = Vec::new();
        for tool in &offer.tools {
            match self.tool(tool, offer.mirrors) {
                Ok(made) => entries.push(entry(Listing::Tools, self.public(&tool.name), tool, made.into())),
                Err(why) => tracing::warn!(upstream = %self.upstream.name, tool = tool.name, "left out: {why}"),
            }
        }
        for prompt in &offer.prompts {
            let made = self.prompt(prompt, offer.completes).into();
            entries.push(entry(Listing::Prompts, self.public(&prompt.name), prompt, made));
        }
        let uri = |listed: &Listed| format!("{}{}", self.prefix, listed.name);
        for resource in &offer.resources {
            if let Some(made) = self.resource(resource) {
                entries.push(entry(Listing::Resources, uri(resource), resource, made.into()));
            }
        }
        for template in &offer.templates {
            if let Some(made) = self.template(template, offer.completes) {
                entries.push(entry(Listing::Templates, uri(template), template, made.into()));
            }
        }
        entries
    }

    /// The name of a tool or a prompt here.
    fn public(&self, name: &str) -> String {
        format!("{}.{name}", self.upstream.name)
    }

    /// The URI upstream of a URI here.
    pub(crate) fn own<'a>(&self, uri: &'a str) -> Option<&'a str> {
        uri.strip_prefix(&*self.prefix)
    }

    /// A tool. Its calls may be tasks, though the server knows of none. The error says why it cannot be passed on.
    fn tool(&self, listed: &Listed, mirrors: bool) -> Result<Tool, &'static str> {
        if listed.needs_task {
            return Err("upstream it can only be called as a task, which is not supported");
        }
        let mirror = if mirrors { Mirror::of(&listed.definition)? } else { Mirror::default() };
        let (upstream, name) = (self.upstream.clone(), Arc::<str>::from(&*listed.name));
        let mirror = Arc::new(mirror);
        let run = move |context: Context, arguments: Bytes| {
            let (upstream, name, mirror) = (upstream.clone(), name.clone(), mirror.clone());
            async move {
                let headers = mirror.headers(&arguments);
                let request = Request::tool(&name, &arguments, headers).ok_or_else(bad_arguments)?;
                Answer::raw(call(&upstream, request, &context).await?.map_err(failure)?)
            }
        };
        Ok(Tool::raw(&listed.definition, run)
            .name(self.public(&listed.name))
            .task_support(self.config.support_of(&listed.name))
            .timeout(self.config.timeout_of(&listed.name)))
    }

    fn prompt(&self, listed: &Listed, completes: bool) -> Prompt {
        let (upstream, name) = (self.upstream.clone(), Arc::<str>::from(&*listed.name));
        let get = move |context: Context, arguments: Bytes| {
            let (upstream, name) = (upstream.clone(), name.clone());
            async move {
                let request = Request::prompt(&name, &arguments).ok_or_else(bad_arguments)?;
                Ok(Messages::raw(call(&upstream, request, &context).await?.map_err(failure)?))
            }
        };
        let prompt =
            Prompt::raw(&listed.definition, get).name(self.public(&listed.name)).timeout(self.config.timeout());
        if !completes {
            return prompt;
        }
        let (upstream, name) = (self.upstream.clone(), Arc::<str>::from(&*listed.name));
        prompt.complete_raw(move |context, wanted| {
            let (upstream, name) = (upstream.clone(), name.clone());
            async move { complete(&upstream, Reference::Prompt(&name), &context, &wanted).await }
        })
    }

    fn resource(&self, listed: &Listed) -> Option<Resource> {
        let definition = wire::prefixed(Listing::Resources, &listed.definition, &self.prefix)?;
        let wrapped = self.clone();
        let read = move |context: Context, uri: String| {
            let wrapped = wrapped.clone();
            async move { wrapped.read(&context, &uri).await }
        };
        Some(Resource::raw(&definition, read).timeout(self.config.timeout()))
    }

    fn template(&self, listed: &Listed, completes: bool) -> Option<Resource> {
        let definition = wire::prefixed(Listing::Templates, &listed.definition, &self.prefix)?;
        let wrapped = self.clone();
        let read = move |context: Context, uri: String| {
            let wrapped = wrapped.clone();
            async move { wrapped.read(&context, &uri).await }
        };
        let template = Resource::raw_template(&definition, read).timeout(self.config.timeout());
        if !completes {
            return Some(template);
        }
        let (upstream, name) = (self.upstream.clone(), Arc::<str>::from(&*listed.name));
        Some(template.complete_raw(move |context, wanted| {
            let (upstream, name) = (upstream.clone(), name.clone());
            async move { complete(&upstream, Reference::Template(&name), &context, &wanted).await }
        }))
    }

    async fn read(&self, context: &Context, uri: &str) -> Result<Contents, Failure> {
        let own = self.own(uri).ok_or_else(|| Failure::resource_not_found(uri))?;
        let result = call(&self.upstream, Request::resource(own), context).await?.map_err(|error| {
            // Its data would name the URI upstream.
            if error.code == wire::RESOURCE_NOT_FOUND { Failure::resource_not_found(uri) } else { failure(error) }
        })?;
        let odd = || failure(self.upstream.error(&"gives no contents that MCP knows"));
        Ok(Contents::raw(wire::prefix_contents(&result, &self.prefix).ok_or_else(odd)?))
    }
}

/// Completes an argument: the JSON of the whole result.
async fn complete(
    upstream: &Arc<Upstream>,
    reference: Reference<'_>,
    context: &Context,
    wanted: &[u8],
) -> Result<Bytes, Failure> {
    #[derive(Deserialize)]
    struct Wanted<'a> {
        #[serde(borrow)]
        argument: &'a RawValue,
        #[serde(borrow, default)]
        context: Option<&'a RawValue>,
    }
    let Wanted { argument, context: given } = serde_json::from_slice(wanted).map_err(|_| bad_arguments())?;
    let given = given.map(|given| given.get().as_bytes());
    let request = Request::complete(reference, argument.get().as_bytes(), given).ok_or_else(bad_arguments)?;
    let completing = tokio::time::timeout(COMPLETE_TIMEOUT, Box::pin(call(upstream, request, context))).await;
    completing.map_err(|_| failure(upstream.error(&"does not answer")))??.map_err(failure)
}

fn bad_arguments() -> Failure {
    Failure::protocol(INVALID_PARAMS, "Invalid params: arguments are no JSON")
}
