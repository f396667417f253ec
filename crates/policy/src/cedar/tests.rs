use bytes::Bytes;
use longhaul_core::{Refusal, TenantId, TestClock, Timestamp};

use super::*;
use crate::chain::Aim;

fn agent(tenant: &str, name: &str) -> Principal {
    Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(name.into()) }
}

fn person(tenant: &str, app: &str, person: &str) -> Principal {
    let caller = Caller::Person { app: app.into(), person: person.into() };
    Principal { tenant: TenantId::new(tenant), caller }
}

fn tool(name: &str) -> Target {
    Target::Tool(name.into())
}

/// The policies of these files, at noon on the first of December 2026.
fn policies(files: &[(&str, &str)]) -> Result<Policies, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let tags = Tags::from([("pay".into(), vec!["money".into()])]);
    let noon = Timestamp::from_micros(1_796_126_400_000_000);
    Policies::read(folder.path(), tags, Arc::new(TestClock::at(noon)))
}

fn is_allowed(policies: &Policies, action: Action, principal: &Principal, target: &Target) -> bool {
    let call =
        Call { target: target.clone(), arguments: Bytes::from_static(b"{}"), aim: Aim::Answer, source: Source::Client };
    match policies.check(action, principal, target, Some(&call)) {
        Ok(()) => true,
        Err(Error::Refused(Refusal::Denied(Denied { by: Check::Policy, .. }))) => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_policy_speaks_of_who_asks_for_what_and_when() {
    let rules = r#"
        permit (principal == Agent::"acme/bot", action == Action::"call_tool", resource == Tool::"echo");
        permit (principal in App::"acme/chat", action, resource is Prompt);
        permit (principal in Tenant::"globex", action, resource);
        forbid (principal, action, resource is Tool) when { resource.tags.contains("money") };
        permit (principal is Person, action == Action::"read_resource", resource) when {
            principal.person == "ann" && resource.uri like "docs+*" && context.time.toTime() < duration("13h")
        };
        permit (principal in Group::"staff", action in [Action::"answer", Action::"create_task"], resource);
        permit (principal, action == Action::"call_tool", resource == Tool::"empty") when {
            context.source == "client" &&
            context.arguments_digest == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        };
    "#;
    let entities = r#"[{"uid": {"type": "Person", "id": "acme/chat/bob"},
        "attrs": {"tenant": {"__entity": {"type": "Tenant", "id": "acme"}}, "app": "chat", "person": "bob"},
        "parents": [{"type": "Group", "id": "ops"}]},
        {"uid": {"type": "Group", "id": "ops"}, "attrs": {}, "parents": [{"type": "Group", "id": "staff"}]}]"#;
    let policies = policies(&[("rules.cedar", rules), ("entities.json", entities)]).unwrap();
    let (bot, ann, bob) = (agent("acme", "bot"), person("acme", "chat", "ann"), person("acme", "chat", "bob"));
    let (stranger, globex) = (agent("acme", "other"), agent("globex", "any"));
    let prompt = Target::Prompt("p".into());
    for (action, principal, target, allowed) in [
        (Action::CallTool, &bot, tool("echo"), true),
        (Action::CallTool, &bot, tool("other"), false),
        (Action::CreateTask, &bot, tool("echo"), false),
        (Action::CallTool, &stranger, tool("echo"), false),
        (Action::GetPrompt, &ann, prompt.clone(), true),
        (Action::GetPrompt, &bot, prompt, false),
        (Action::CallTool, &globex, tool("echo"), true),
        (Action::CallTool, &globex, tool("pay"), false),
        (Action::ReadResource, &ann, Target::Resource("docs+file:///a".into()), true),
        (Action::ReadResource, &ann, Target::Resource("file:///a".into()), false),
        (Action::ReadResource, &bob, Target::Resource("docs+file:///a".into()), false),
        (Action::CreateTask, &bob, tool("echo"), true),
        (Action::CreateTask, &ann, tool("echo"), false),
        (Action::CallTool, &stranger, tool("empty"), true),
    ] {
        assert_eq!(is_allowed(&policies, action, principal, &target), allowed, "{action:?} {principal:?} {target:?}");
    }
    assert!(policies.check(Action::Answer, &bob, &tool("echo"), None).is_ok());
    assert!(policies.check(Action::Answer, &bot, &tool("echo"), None).is_err());
}

#[test]
fn no_two_principals_share_an_id() {
    let rules = r#"permit (principal == Agent::"a/b", action, resource);"#;
    let policies = policies(&[("rules.cedar", rules)]).unwrap();
    assert!(is_allowed(&policies, Action::CallTool, &agent("a", "b"), &tool("x")));
    for other in [agent("a/b", ""), agent("", "a/b"), agent("A", "b"), person("a", "b", ""), agent("a", "b/")] {
        assert!(!is_allowed(&policies, Action::CallTool, &other, &tool("x")), "{other:?}");
    }
    assert_eq!(escaped(&["a/b", "c%"]), "a%2Fb/c%25");
}

#[test]
fn a_policy_that_fails_denies_and_is_named_to_operators_only() {
    let rules = r#"
        @id("all")
        permit (principal, action, resource);
        @id("secret-rule")
        forbid (principal, action == Action::"call_tool", resource == Tool::"big") when { resource.tags.contains("x") ||
            9223372036854775807 + context.arguments_digest.size() > 0 };
    "#;
    // Whatever the validator lets pass: here an overflow.
    let rules =
        rules.replace("9223372036854775807 + context.arguments_digest.size() > 0", "9223372036854775807 * 2 > 0");
    let policies = policies(&[("rules.cedar", &*rules)]).unwrap();
    assert!(is_allowed(&policies, Action::CallTool, &agent("t", "a"), &tool("small")));
    let big = tool("big");
    let error = policies.check(Action::CallTool, &agent("t", "a"), &big, None).unwrap_err().to_string();
    assert!(!error.contains("secret-rule"), "{error}");
    let why = policies.explain(Action::CallTool, &agent("t", "a"), &big, None).unwrap();
    assert!(!why.allowed && why.policies == ["all"] && why.errors[0].contains("secret-rule"), "{why:?}");
}

#[test]
fn what_cannot_be_validated_is_not_taken() {
    for (files, what) in [
        (vec![], "no policy"),
        (vec![("a.cedar", "")], "no policy"),
        (vec![("a.cedar", "permit (principal")], "a.cedar"),
        (vec![("a.cedar", r#"permit (principal, action == Action::"fly", resource);"#)], "fly"),
        (vec![("a.cedar", "permit (principal, action, resource) when { resource.tgas };")], "tgas"),
        (vec![("a.cedar", "permit (principal == ?principal, action, resource);")], "templates"),
        (vec![("a.cedar", DEFAULT), ("notes.txt", "")], "notes.txt"),
        (vec![("a.cedar", DEFAULT), ("entities.json", "[{}]")], "entities.json"),
        (vec![("a.cedar", DEFAULT), ("b.cedarschema", "entity Tool;")], "Tool"),
        (
            vec![
                ("a.cedar", r#"@id("x") permit (principal, action, resource);"#),
                ("b.cedar", r#"@id("x") permit (principal, action, resource);"#),
            ],
            "b.cedar",
        ),
    ] {
        let wrong = policies(&files).unwrap_err();
        assert!(wrong.contains(what), "{wrong}");
    }
    assert!(policies(&[("a.cedar", DEFAULT), ("b.cedarschema", "entity Team;")]).is_ok());
}

#[test]
fn without_a_folder_whoever_is_known_may_do_everything() {
    let policies = Policies::unset(&Tags::new(), Arc::new(TestClock::at(Timestamp::from_micros(0)))).unwrap();
    assert!(is_allowed(&policies, Action::CreateTask, &agent("t", "a"), &tool("x")));
    let why = policies.explain(Action::Answer, &agent("t", "a"), &tool("x"), None).unwrap();
    assert_eq!(why, Explanation { allowed: true, policies: vec!["default.cedar#1".into()], errors: vec![] });
}
