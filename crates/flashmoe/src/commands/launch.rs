//! `flashmoe launch`: what a coding agent must be told to use this server, printed or done.
//!
//! The server is asked for its model and context, because the agents cannot ask it themselves: without being told
//! they assume windows of 128 to 200 thousand tokens and compact too late, and they give up after five minutes of a
//! prefill. Their settings come from their documentation; docs/serving.md has the same as files.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use crate::arguments::{ClientChoice, LaunchArguments};
use crate::failure::Failure;

/// How long a server may take to say what it serves; it never waits for the engine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients give up on a silent stream after this: longer than the longest prefill.
const SILENCE_MS: &str = "3600000";
/// For servers without a key; the clients insist on one.
const ANY_KEY: &str = "none";
/// Longest name of a model.
const NAME_BYTES_MAX: usize = 256;
/// Context below which agents' own prompts leave no room to work.
const CONTEXT_MIN: u64 = 48 << 10;

/// A server and what it serves.
#[derive(Debug)]
struct Served {
    /// Without a slash at its end.
    url: String,
    key: String,
    model: String,
    context: u64,
}

/// What to set and what to run.
#[derive(Debug, PartialEq, Eq)]
struct Launch {
    program: &'static str,
    /// How to get it.
    install: &'static str,
    environment: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    /// A file that the client reads, and its content.
    file: Option<(PathBuf, String)>,
}

pub(crate) fn launch(arguments: &LaunchArguments, out: &mut dyn Write) -> Result<()> {
    let served = ask(&arguments.url, arguments.api_key.as_deref())
        .map_err(|error| Failure::usage(format!("{error:#}; start it with flashmoe serve")))?;
    let launch = match arguments.client {
        ClientChoice::Claude => claude(&served),
        ClientChoice::Codex => codex(&served),
        ClientChoice::Opencode => opencode(&served),
        ClientChoice::Aider => aider(&served, crate::state::folder()),
    };
    if served.context < CONTEXT_MIN {
        crate::progress::say(&format!(
            "flashmoe: the context has {} tokens; agents begin with prompts of 10,000 to 25,000",
            served.context
        ));
    }
    if arguments.exec {
        return Err(run(&launch, &arguments.arguments).into());
    }
    let text = print(&launch, &arguments.arguments);
    out.write_all(text.as_bytes()).map_err(|error| Failure::io(error).into())
}

fn claude(served: &Served) -> Launch {
    let model = || served.model.clone();
    let environment = vec![
        ("ANTHROPIC_BASE_URL", served.url.clone()),
        ("ANTHROPIC_AUTH_TOKEN", served.key.clone()),
        ("ANTHROPIC_MODEL", model()),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", model()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", model()),
        ("ANTHROPIC_DEFAULT_FABLE_MODEL", model()),
        // Titles and summaries: they must not push the conversation aside.
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", format!("{}:side", served.model)),
        ("CLAUDE_CODE_SUBAGENT_MODEL", model()),
        // A header with a number that changes at each request, in front of the prompt.
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0".to_owned()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        ("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK", "1".to_owned()),
        ("CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS", "1".to_owned()),
        ("CLAUDE_STREAM_IDLE_TIMEOUT_MS", SILENCE_MS.to_owned()),
        ("CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS", SILENCE_MS.to_owned()),
        ("API_TIMEOUT_MS", SILENCE_MS.to_owned()),
        ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", served.context.to_string()),
        ("CLAUDE_CODE_AUTO_COMPACT_WINDOW", served.context.to_string()),
    ];
    let install = "npm install -g @anthropic-ai/claude-code";
    Launch { program: "claude", install, environment, arguments: Vec::new(), file: None }
}

fn codex(served: &Served) -> Launch {
    let provider = "model_providers.flashmoe";
    let text = |text: &str| Value::from(text).to_string();
    let settings = [
        ("model_provider".to_owned(), text("flashmoe")),
        ("model".to_owned(), text(&served.model)),
        ("model_context_window".to_owned(), served.context.to_string()),
        (format!("{provider}.name"), text("flashmoe")),
        (format!("{provider}.base_url"), text(&format!("{}/v1", served.url))),
        (format!("{provider}.wire_api"), text("responses")),
        (format!("{provider}.env_key"), text("FLASHMOE_API_KEY")),
        (format!("{provider}.stream_idle_timeout_ms"), SILENCE_MS.to_owned()),
    ];
    let arguments = settings
        .into_iter()
        .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
        .collect();
    let environment = vec![("FLASHMOE_API_KEY", served.key.clone())];
    let install = "npm install -g @openai/codex";
    Launch { program: "codex", install, environment, arguments, file: None }
}

fn opencode(served: &Served) -> Launch {
    // A quarter of the window for an answer leaves the rest for the conversation before it.
    let limit = json!({ "context": served.context, "output": served.context / 4 });
    let model = |name: &str| {
        json!({
            "name": name,
            "limit": limit,
            "tool_call": true,
            "reasoning": true,
            "interleaved": { "field": "reasoning_content" },
        })
    };
    let side = format!("{}:side", served.model);
    let models = json!({ (&served.model): model(&served.model), (&side): model(&side) });
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": format!("flashmoe/{}", served.model),
        "small_model": format!("flashmoe/{side}"),
        "provider": {
            "flashmoe": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "flashmoe",
                "options": {
                    "baseURL": format!("{}/v1", served.url),
                    "apiKey": served.key,
                    "timeout": false,
                },
                "models": models,
            },
        },
    });
    let environment = vec![("OPENCODE_CONFIG_CONTENT", config.to_string())];
    let install = "npm install -g opencode-ai";
    Launch { program: "opencode", install, environment, arguments: Vec::new(), file: None }
}

/// `state` is the folder for the file that tells aider of the model; without that it asks the network for a list of all
/// models, and knows no window.
fn aider(served: &Served, state: Option<PathBuf>) -> Launch {
    let known = json!({
        "litellm_provider": "openai",
        "mode": "chat",
        "max_input_tokens": served.context,
        "max_output_tokens": served.context / 4,
        "max_tokens": served.context / 4,
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 0.0,
    });
    let [model, side] = ["", ":side"].map(|kind| format!("openai/{}{kind}", served.model));
    let file = state.map(|folder| {
        let models = json!({ (&model): known, (&side): known });
        (folder.join("aider.json"), models.to_string())
    });
    let mut environment = vec![
        ("OPENAI_API_BASE", format!("{}/v1", served.url)),
        ("OPENAI_API_KEY", served.key.clone()),
        ("AIDER_MODEL", model),
        ("AIDER_WEAK_MODEL", side),
        ("AIDER_TIMEOUT", "3600".to_owned()),
        ("AIDER_SHOW_MODEL_WARNINGS", "false".to_owned()),
        // Prices of other models, which it would fetch at each start.
        ("LITELLM_LOCAL_MODEL_COST_MAP", "True".to_owned()),
        // Requests of its own to elsewhere.
        ("AIDER_ANALYTICS_DISABLE", "true".to_owned()),
        ("AIDER_CHECK_UPDATE", "false".to_owned()),
        ("AIDER_SHOW_RELEASE_NOTES", "false".to_owned()),
    ];
    if let Some((path, _)) = &file {
        environment.push(("AIDER_MODEL_METADATA_FILE", path.to_string_lossy().into_owned()));
    }
    let install = "pip install aider-chat";
    Launch { program: "aider", install, environment, arguments: Vec::new(), file }
}

/// Becomes the client; comes back only if it cannot be run.
fn run(launch: &Launch, further: &[OsString]) -> Failure {
    if let Some((path, content)) = &launch.file {
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) = written.and_then(|()| std::fs::write(path, content)) {
            return Failure::Io(anyhow!("cannot write {}: {error}", path.display()));
        }
    }
    let mut command = Command::new(launch.program);
    command.args(&launch.arguments).args(further);
    command.envs(launch.environment.iter().map(|(name, value)| (name, value)));
    let error = become_it(&mut command);
    let Launch { program, install, .. } = launch;
    Failure::usage(match error.kind() {
        std::io::ErrorKind::NotFound => format!("{program} is not installed: {install}"),
        _ => format!("cannot run {program}: {error}"),
    })
}

#[cfg(unix)]
fn become_it(command: &mut Command) -> std::io::Error {
    std::os::unix::process::CommandExt::exec(command)
}

/// A process cannot become another there: it waits, and ends with the same code. The client gets Ctrl-C as well, and
/// decides what that means.
#[cfg(windows)]
fn become_it(command: &mut Command) -> std::io::Error {
    let ran = crate::signals::listen(|| {}).and_then(|()| command.status());
    match ran {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

/// Lines for a shell.
fn print(launch: &Launch, further: &[OsString]) -> String {
    let mut text = String::new();
    if let Some((path, content)) = &launch.file {
        let folder = path.parent().unwrap_or(path).to_string_lossy();
        let (folder, path) = (quoted(&folder), quoted(&path.to_string_lossy()));
        let content = quoted(content);
        text.push_str(&format!("mkdir -p {folder}\nprintf '%s\\n' {content} > {path}\n"));
    }
    for (name, value) in &launch.environment {
        text.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    text.push_str(launch.program);
    let further = further.iter().map(|argument| argument.to_string_lossy().into_owned());
    for argument in launch.arguments.iter().cloned().chain(further) {
        text.push(' ');
        text.push_str(&quoted(&argument));
    }
    text.push('\n');
    text
}

/// A word as a shell reads it back.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Asks a server for its model. Plain HTTP: TLS is the business of a proxy in front of it.
fn ask(url: &str, key: Option<&str>) -> Result<Served> {
    let url = url.trim_end_matches('/');
    let url = url.strip_suffix("/v1").unwrap_or(url);
    let authority = url
        .strip_prefix("http://")
        .filter(|rest| !rest.is_empty() && !rest.contains('/'))
        .ok_or_else(|| anyhow!("{url} is not of the form http://HOST:PORT"))?;
    let address = if authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let unreachable = || format!("no server answers at {url}");
    let address = address.to_socket_addrs().with_context(unreachable)?.next();
    let address = address.ok_or_else(|| anyhow!("{authority} has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(unreachable)?;
    stream.set_read_timeout(Some(PATIENCE)).with_context(unreachable)?;
    let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n"));
    let request = format!(
        "GET /v1/models HTTP/1.0\r\nHost: {authority}\r\n{}\r\n",
        authorization.unwrap_or_default()
    );
    stream.write_all(request.as_bytes()).with_context(unreachable)?;
    let mut answer = String::new();
    stream.take(1 << 20).read_to_string(&mut answer).with_context(unreachable)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| anyhow!("{}", unreachable()))?;
    match head.split(' ').nth(1) {
        Some("200") => {}
        Some("401") => return Err(anyhow!("the server at {url} wants its key: give --api-key")),
        status => {
            return Err(anyhow!("the server at {url} answers {}", status.unwrap_or("nothing")));
        }
    }
    let foreign = || anyhow!("what answers at {url} is not flashmoe");
    let body: Value = serde_json::from_str(body).map_err(|_| foreign())?;
    let model = &body["data"][0];
    let name = model["id"].as_str().ok_or_else(foreign)?;
    if name.len() > NAME_BYTES_MAX || !store::shown::is_printable(name) {
        let name = store::shown::quoted(name);
        return Err(anyhow!("the server calls its model {name}, which no client takes"));
    }
    Ok(Served {
        url: url.to_owned(),
        key: key.unwrap_or(ANY_KEY).to_owned(),
        model: name.to_owned(),
        context: model["context_length"].as_u64().ok_or_else(foreign)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn served() -> Served {
        Served {
            url: "http://127.0.0.1:8080".to_owned(),
            key: "it's".to_owned(),
            model: "qwen".to_owned(),
            context: 65_536,
        }
    }

    fn value<'a>(launch: &'a Launch, name: &str) -> &'a str {
        &launch.environment.iter().find(|(other, _)| *other == name).unwrap().1
    }

    #[test]
    fn each_client_is_told_address_model_and_window() {
        let claude = claude(&served());
        assert_eq!(value(&claude, "ANTHROPIC_BASE_URL"), "http://127.0.0.1:8080");
        assert_eq!(value(&claude, "ANTHROPIC_DEFAULT_HAIKU_MODEL"), "qwen:side");
        assert_eq!(value(&claude, "CLAUDE_CODE_MAX_CONTEXT_TOKENS"), "65536");
        let codex = codex(&served()).arguments.join(" ");
        assert!(codex.contains("base_url=\"http://127.0.0.1:8080/v1\""), "{codex}");
        assert!(codex.contains("model_context_window=65536"), "{codex}");
        let opencode = opencode(&served());
        let config: Value =
            serde_json::from_str(value(&opencode, "OPENCODE_CONFIG_CONTENT")).unwrap();
        let flashmoe = &config["provider"]["flashmoe"];
        assert_eq!(flashmoe["models"]["qwen"]["limit"]["context"], 65_536);
        assert_eq!(flashmoe["options"]["timeout"], false);
        let aider = aider(&served(), Some("/state".into()));
        assert_eq!(value(&aider, "AIDER_MODEL"), "openai/qwen");
        assert_eq!(value(&aider, "AIDER_MODEL_METADATA_FILE"), "/state/aider.json");
        let models: Value = serde_json::from_str(&aider.file.unwrap().1).unwrap();
        assert_eq!(models["openai/qwen:side"]["max_input_tokens"], 65_536);
    }

    #[test]
    fn a_shell_reads_back_what_is_printed() {
        let printed = print(&codex(&served()), &["fix it".into()]);
        let (exports, command) = printed.trim_end().split_once('\n').unwrap();
        let script = format!(
            "codex() {{ printf '%s\\n' \"$@\"; }}\n{exports}\n{command}\necho \"$FLASHMOE_API_KEY\""
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let words = String::from_utf8(output.stdout).unwrap();
        let mut expected = codex(&served()).arguments;
        expected.extend(["fix it".to_owned(), "it's".to_owned()]);
        assert_eq!(words.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_no_server_is_said_to_be_none() {
        for url in ["ftp://x", "http://", "http://a/b/c", "localhost"] {
            assert!(ask(url, None).unwrap_err().to_string().contains("form"), "{url}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let escape = r#"HTTP/1.0 200 x

{"data":[{"id":"a\u001b]0;b\u0007","context_length":9}]}"#;
        let escape = &*Box::leak(escape.replace("x\n\n", "x\r\n\r\n").into_boxed_str());
        let answers = ["HTTP/1.0 401 x\r\n\r\n", "HTTP/1.0 200 x\r\n\r\n{}", "SSH-2.0", "", escape];
        let thread = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let _some = stream.read(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        for expected in [
            "wants its key",
            "is not flashmoe",
            "no server answers",
            "no server answers",
            "no client",
        ] {
            let error = ask(&url, Some("k")).unwrap_err().to_string();
            assert!(store::shown::is_printable(&error), "{error:?}");
            assert!(error.contains(expected), "{error}");
        }
        thread.join().unwrap();
    }
}
