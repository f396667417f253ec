//! The tools on offer, which may change while the worker runs.

use std::collections::HashMap;
use std::sync::Arc;

use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_core::{TaskSupport, ToolDef};
use tokio::sync::watch;

use crate::Error;
use crate::tool::Tool;

/// Tools of one worker.
const TOOLS_MAX: usize = 1000;
/// Definitions of one worker together, in bytes: they are announced in one message.
const DEFINITIONS_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;

/// A worker's tools. All clones are the same set.
#[derive(Clone, Default)]
pub struct Tools(watch::Sender<Arc<Set>>);

#[derive(Clone, Default)]
pub(crate) struct Set {
    announced: Vec<ToolDef>,
    by_name: HashMap<String, Arc<Tool>>,
}

impl Tools {
    /// Adds a tool.
    pub fn add(&self, tool: Tool) -> Result<(), Error> {
        let mut set = Set::clone(&self.0.borrow());
        set.add(tool)?;
        self.0.send_replace(Arc::new(set));
        Ok(())
    }

    /// Offers these tools instead of the former ones, and announces them if the worker runs. Runs of a tool that is
    /// gone go on. With an error nothing has changed.
    pub fn replace(&self, tools: impl IntoIterator<Item = Tool>) -> Result<(), Error> {
        let mut set = Set::default();
        for tool in tools {
            set.add(tool)?;
        }
        self.0.send_replace(Arc::new(set));
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Tool>> {
        self.0.borrow().by_name.get(name).cloned()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Set>> {
        self.0.subscribe()
    }
}

impl Set {
    fn add(&mut self, tool: Tool) -> Result<(), Error> {
        let bad = |why: &str| Error::Tool { name: tool.called().to_owned(), why: why.to_owned() };
        let announced = tool.announce().map_err(|why| bad(&why))?;
        if self.by_name.contains_key(&announced.name) {
            return Err(bad("another tool has this name"));
        }
        if self.announced.len() == TOOLS_MAX {
            return Err(bad("a worker has at most 1000 tools"));
        }
        let bytes: usize = self.announced.iter().chain([&announced]).map(|tool| tool.definition.len()).sum();
        if bytes > DEFINITIONS_BYTES_MAX {
            return Err(bad("the definitions of all tools together are too large"));
        }
        self.by_name.insert(announced.name.clone(), Arc::new(tool));
        self.announced.push(announced);
        Ok(())
    }

    /// As they are announced, in the order they were given.
    pub(crate) fn announced(&self) -> Vec<ToolDef> {
        self.announced.clone()
    }

    /// The tools whose calls may become tasks.
    pub(crate) fn claimable(&self) -> Vec<String> {
        let claimable = self.announced.iter().filter(|tool| tool.task_support != TaskSupport::Forbidden);
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
        assert_eq!(twice.to_string(), "tool \"b\": another tool has this name");
        assert!(tools.add(tool("a")).is_err() && tools.replace([tool("b c")]).is_err());
        assert!(tools.get("a").is_some() && tools.get("b").is_none());
        tools.replace([tool("c"), tool("b").task_support(TaskSupport::Forbidden)]).unwrap();
        let set = tools.watch().borrow().clone();
        assert_eq!(set.announced().iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["c", "b"]);
        assert_eq!(set.claimable(), ["c"]);
        let many = tools.replace((0..=TOOLS_MAX).map(|at| tool(&at.to_string()))).unwrap_err();
        assert!(many.to_string().contains("at most 1000"));
    }
}
