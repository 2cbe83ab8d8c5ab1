//! Goal: a conversation that outgrows its context loses whole old turns and nothing else. Method: random conversations
//! and a renderer that counts bytes.

use proptest::prelude::*;
use text::{EncodeLimit, Fitted, Message, OnFull, Role, Room, TextError, ToolCall, fit};

/// Tokens of a conversation for the renderer below.
fn tokens(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.content.len().div_ceil(3) + 4).sum()
}

/// What [`fit`] makes of messages, as the messages that are left, and how often it rendered.
fn fitted(
    messages: &[Message],
    room: Room,
    context: usize,
) -> (Result<Fitted<Vec<Message>>, TextError>, usize) {
    let mut renders = 0;
    let limit = EncodeLimit { tokens: context, counted: usize::MAX, gone: &|| false };
    let render = &mut |messages: &[Message], limit: EncodeLimit<'_>| {
        renders += 1;
        let tokens = tokens(messages);
        if tokens > limit.tokens {
            return Err(TextError::TooManyTokens { tokens, all: true });
        }
        Ok(messages.to_vec())
    };
    let fitted = fit(messages, room, limit, render);
    (fitted, renders)
}

const DROPPING: Room = Room { on_full: OnFull::DropOldest, answer: Some(20) };

fn call(id: &str) -> Message {
    let mut message = Message::new(Role::Assistant, "");
    let arguments = serde_json::Map::new();
    message.tool_calls.push(ToolCall { id: Some(id.to_owned()), name: "f".to_owned(), arguments });
    message
}

fn result(id: &str, content: String) -> Message {
    let mut message = Message::new(Role::Tool, content);
    message.tool_call_id = Some(id.to_owned());
    message
}

/// A piece of a conversation; results may come late, after further messages of the user.
#[derive(Clone, Debug)]
enum Piece {
    User(usize),
    Answer(usize),
    Call,
    Result(usize),
}

fn conversations() -> impl Strategy<Value = Vec<Message>> {
    let piece = prop_oneof![
        4 => (1usize..200).prop_map(Piece::User),
        4 => (1usize..200).prop_map(Piece::Answer),
        2 => Just(Piece::Call),
        2 => (1usize..200).prop_map(Piece::Result),
    ];
    (0usize..2, prop::collection::vec(piece, 0..60), 1usize..200).prop_map(
        |(system, pieces, last)| {
            let text = |length| "x".repeat(length);
            let mut messages = vec![Message::new(Role::System, text(30)); system];
            let (mut calls, mut answered) = (0, 0);
            for piece in pieces {
                match piece {
                    Piece::User(length) => messages.push(Message::new(Role::User, text(length))),
                    Piece::Answer(length) => {
                        messages.push(Message::new(Role::Assistant, text(length)))
                    }
                    Piece::Call => {
                        messages.push(call(&format!("call{calls}")));
                        calls += 1;
                    }
                    Piece::Result(length) if answered < calls => {
                        messages.push(result(&format!("call{answered}"), text(length)));
                        answered += 1;
                    }
                    Piece::Result(_) => {}
                }
            }
            messages.push(Message::new(Role::User, text(last)));
            messages
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whole_old_turns_are_dropped_and_nothing_else(messages in conversations(), context in 40usize..1200) {
        let head = messages.iter().take_while(|message| message.role == Role::System).count();
        let (found, renders) = fitted(&messages, DROPPING, context);
        prop_assert!(renders <= 3 + messages.len().ilog2() as usize, "{renders} renders");
        match found {
            Ok(Fitted { prompt: kept, dropped }) => {
                prop_assert!(tokens(&kept) <= context);
                prop_assert_eq!(&kept[..head], &messages[..head]);
                prop_assert!(messages[head..].ends_with(&kept[head..]));
                // The last message of the user is there, and begins or is within the last turn.
                prop_assert_eq!(kept.last(), messages.last());
                prop_assert_eq!(dropped == 0, kept.len() == messages.len());
                if dropped > 0 {
                    prop_assert_eq!(kept[head].role, Role::User);
                    prop_assert!(tokens(&messages) + 20.min(context / 4) > context);
                }
                // A result has its call.
                for (at, message) in kept.iter().enumerate().filter(|(_, it)| it.role == Role::Tool) {
                    let calls = kept[..at].iter().flat_map(|it| &it.tool_calls);
                    prop_assert!(calls.into_iter().any(|call| call.id == message.tool_call_id));
                }
            }
            Err(TextError::TooManyTokens { tokens: told, all: true }) => prop_assert!(told > context),
            Err(other) => panic!("{other}"),
        }
        // Whoever did not ask for it loses nothing.
        let (stopped, renders) = fitted(&messages, Room { on_full: OnFull::Stop, answer: None }, context);
        prop_assert_eq!(renders, 1);
        prop_assert_eq!(stopped.is_ok(), tokens(&messages) <= context);
    }
}

/// A conversation of `turns` turns of 200 bytes each.
fn long(turns: usize) -> Vec<Message> {
    let mut messages = vec![Message::new(Role::System, "Be brief.")];
    for turn in 0..turns {
        messages.push(Message::new(Role::User, format!("{turn:>100}")));
        messages.push(Message::new(Role::Assistant, format!("{turn:>100}")));
    }
    messages.push(Message::new(Role::User, "And now?"));
    messages
}

#[test]
fn the_beginning_stays_the_same_for_many_turns() {
    let dropped: Vec<usize> =
        (0..100).map(|turns| fitted(&long(turns), DROPPING, 1000).0.unwrap().dropped).collect();
    assert!(dropped.is_sorted(), "{dropped:?}");
    let mut changes = dropped.clone();
    changes.dedup();
    // 76 tokens a turn and its question: twelve fit. Each change drops 1000 bytes, five turns.
    assert_eq!(dropped.iter().filter(|&&count| count == 0).count(), 13, "{dropped:?}");
    assert_eq!(changes.len(), 19, "{changes:?}");
    assert!(changes.windows(2).all(|pair| pair[1] - pair[0] == 5), "{changes:?}");
}

#[test]
fn the_last_turn_may_take_the_room_of_its_answer_and_no_more() {
    let messages = |length: usize| {
        vec![
            Message::new(Role::System, "s"),
            Message::new(Role::User, "old"),
            Message::new(Role::Assistant, "old"),
            Message::new(Role::User, "x".repeat(length)),
        ]
    };
    let (found, _) = fitted(&messages(3 * 90), DROPPING, 100);
    let Fitted { prompt, dropped } = found.unwrap();
    assert_eq!((prompt.len(), dropped, tokens(&prompt)), (2, 1, 99));
    let (refused, _) = fitted(&messages(3 * 95), DROPPING, 100);
    // The figures are those of what cannot be dropped.
    assert!(matches!(refused, Err(TextError::TooManyTokens { tokens: 104, all: true })));
}

#[test]
fn a_turn_with_its_tools_is_one_turn() {
    let mut messages = vec![
        Message::new(Role::User, "x".repeat(90)),
        call("a"),
        // The user goes on before the result is there.
        Message::new(Role::User, "x".repeat(90)),
        result("a", "x".repeat(90)),
        Message::new(Role::Assistant, "x".repeat(90)),
        Message::new(Role::User, "last"),
    ];
    let Fitted { prompt, dropped } = fitted(&messages, DROPPING, 120).0.unwrap();
    assert_eq!((prompt.len(), dropped), (1, 1));
    // A result without an identifier answers the last call.
    messages[3].tool_call_id = None;
    assert_eq!(fitted(&messages, DROPPING, 120).0.unwrap().dropped, 1);
}

#[test]
fn other_errors_end_the_search() {
    let limit = EncodeLimit { tokens: 100, counted: 100, gone: &|| false };
    let mut renders = 0;
    let found = fit(&long(20), DROPPING, limit, &mut |_, _| -> Result<(), TextError> {
        renders += 1;
        match renders {
            1 => Err(TextError::TooManyTokens { tokens: 1000, all: false }),
            _ => Err(TextError::Gone),
        }
    });
    assert!(matches!(found, Err(TextError::Gone)) && renders == 2);
}
