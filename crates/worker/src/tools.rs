//! What a worker offers, which may change while it runs.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_core::{PromptDef, ResourceDef, Target, TaskSupport, TemplateDef, ToolDef};
use tokio::sync::watch;

use crate::Error;
use crate::completion::Completions;
use crate::function::Function;
use crate::prompt::Prompt;
use crate::resource::{Announced, Match, Resource};
use crate::tool::Tool;

/// Tools of one worker; as many prompts, resources and templates.
const TOOLS_MAX: usize = 1000;
/// Definitions of one worker together, in bytes: they are announced in one message.
const DEFINITIONS_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;

/// What a worker offers: tools, prompts and resources. All clones are the same set.
#[derive(Clone, Default)]
pub struct Tools(watch::Sender<Arc<Set>>);

/// One thing on offer.
#[derive(Clone)]
pub enum Offer {
    /// A tool.
    Tool(Tool),
    /// A prompt.
    Prompt(Prompt),
    /// A resource, or a family of them.
    Resource(Resource),
}

impl From<Tool> for Offer {
    fn from(tool: Tool) -> Self {
        Self::Tool(tool)
    }
}

impl From<Prompt> for Offer {
    fn from(prompt: Prompt) -> Self {
        Self::Prompt(prompt)
    }
}

impl From<Resource> for Offer {
    fn from(resource: Resource) -> Self {
        Self::Resource(resource)
    }
}

/// As it is announced, in the order it was given.
#[derive(Clone, Default)]
pub(crate) struct Announcement {
    pub(crate) tools: Vec<ToolDef>,
    pub(crate) prompts: Vec<PromptDef>,
    pub(crate) resources: Vec<ResourceDef>,
    pub(crate) templates: Vec<TemplateDef>,
    pub(crate) completes: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Set {
    announced: Announcement,
    bytes: usize,
    /// The templates with their functions, in the order of the announced ones.
    families: Vec<(Match, Arc<Function>)>,
    functions: HashMap<Target, Arc<Function>>,
}

impl Tools {
    /// Adds a tool, a prompt or a resource.
    pub fn add(&self, offer: impl Into<Offer>) -> Result<(), Error> {
        let mut set = Set::clone(&self.0.borrow());
        set.add(offer.into())?;
        self.0.send_replace(Arc::new(set));
        Ok(())
    }

    /// Offers these instead of all that was on offer, prompts and resources too, and announces them if the worker runs.
    /// Runs of a tool that is gone go on. With an error nothing has changed.
    pub fn replace(&self, offers: impl IntoIterator<Item: Into<Offer>>) -> Result<(), Error> {
        let mut set = Set::default();
        for offer in offers {
            set.add(offer.into())?;
        }
        self.0.send_replace(Arc::new(set));
        Ok(())
    }

    /// The function of what is called; of a resource, with the variables in its URI as arguments.
    pub(crate) fn get(&self, target: &Target) -> Option<(Arc<Function>, Option<Bytes>)> {
        let set = self.0.borrow();
        if let Some(function) = set.functions.get(target) {
            let variables = matches!(target, Target::Resource(_)).then(|| Bytes::from_static(b"{}"));
            return Some((function.clone(), variables));
        }
        let Target::Resource(uri) = target else { return None };
        set.families.iter().find_map(|(of, function)| Some((function.clone(), Some(of.variables(uri)?))))
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Set>> {
        self.0.subscribe()
    }
}

impl Set {
    fn add(&mut self, offer: Offer) -> Result<(), Error> {
        match offer {
            Offer::Tool(tool) => {
                self.add_tool(&tool).map_err(|why| Error::Tool { name: tool.called().to_owned(), why })
            }
            Offer::Prompt(prompt) => {
                self.add_prompt(&prompt).map_err(|why| Error::Prompt { name: prompt.called(), why })
            }
            Offer::Resource(resource) => {
                self.add_resource(&resource).map_err(|why| Error::Resource { uri: resource.called(), why })
            }
        }
    }

    fn add_tool(&mut self, tool: &Tool) -> Result<(), String> {
        let announced = tool.announce()?;
        self.take(Target::Tool(announced.name.clone()), &announced.definition, self.announced.tools.len())?;
        self.functions.insert(Target::Tool(announced.name.clone()), Arc::new(tool.function()));
        self.announced.tools.push(announced);
        Ok(())
    }

    fn add_prompt(&mut self, prompt: &Prompt) -> Result<(), String> {
        let announced = prompt.announce()?;
        let (target, name) = (Target::Prompt(announced.name.clone()), announced.name.clone());
        self.take(target.clone(), &announced.definition, self.announced.prompts.len())?;
        self.functions.insert(target, Arc::new(prompt.function()));
        self.complete(Target::CompletePrompt(name), prompt.completions());
        self.announced.prompts.push(announced);
        Ok(())
    }

    fn add_resource(&mut self, resource: &Resource) -> Result<(), String> {
        match resource.announce()? {
            Announced::One(announced) => {
                let target = Target::Resource(announced.uri.clone());
                self.take(target.clone(), &announced.definition, self.announced.resources.len())?;
                self.functions.insert(target, Arc::new(resource.function()));
                self.announced.resources.push(announced);
            }
            Announced::Family(announced, of) => {
                let target = Target::CompleteTemplate(announced.uri_template.clone());
                self.take(target.clone(), &announced.definition, self.announced.templates.len())?;
                self.families.push((of, Arc::new(resource.function())));
                self.complete(target, resource.completions());
                self.announced.templates.push(announced);
            }
        }
        Ok(())
    }

    /// Makes sure that there is room for one more, under a name of its own.
    fn take(&mut self, target: Target, definition: &Bytes, so_far: usize) -> Result<(), String> {
        if self.functions.contains_key(&target) {
            return Err("another one has this name".into());
        }
        if so_far == TOOLS_MAX {
            return Err(format!("a worker has at most {TOOLS_MAX} of a kind"));
        }
        if self.bytes + definition.len() > DEFINITIONS_BYTES_MAX {
            return Err("all definitions together are too large".into());
        }
        self.bytes += definition.len();
        Ok(())
    }

    fn complete(&mut self, target: Target, completions: &Completions) {
        self.announced.completes |= !completions.is_empty();
        let function = completions.function(target.name());
        self.functions.insert(target, Arc::new(function));
    }

    pub(crate) fn announced(&self) -> Announcement {
        self.announced.clone()
    }

    /// The tools whose calls may become tasks.
    pub(crate) fn claimable(&self) -> Vec<String> {
        let claimable = self.announced.tools.iter().filter(|tool| tool.task_support != TaskSupport::Forbidden);
        claimable.map(|tool| tool.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, NoArguments};

    fn tool(name: &str) -> Tool {
        Tool::new(name, async |_, _: NoArguments| Ok(Answer::text("")))
    }

    #[test]
    fn a_set_with_a_bad_tool_changes_nothing() {
        let tools = Tools::default();
        tools.add(tool("a")).unwrap();
        let twice = tools.replace([tool("b"), tool("b")]).unwrap_err();
        assert_eq!(twice.to_string(), "tool \"b\": another one has this name");
        assert!(tools.add(tool("a")).is_err() && tools.replace([tool("b c")]).is_err());
        assert!(tools.get(&Target::Tool("a".into())).is_some() && tools.get(&Target::Tool("b".into())).is_none());
        tools.replace([tool("c"), tool("b").task_support(TaskSupport::Forbidden)]).unwrap();
        let set = tools.watch().borrow().clone();
        assert_eq!(set.announced().tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["c", "b"]);
        assert_eq!(set.claimable(), ["c"]);
        let many = tools.replace((0..=TOOLS_MAX).map(|at| tool(&at.to_string()))).unwrap_err();
        assert!(many.to_string().contains("at most 1000"));
    }
}
