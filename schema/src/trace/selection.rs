//! Derives schemas from others: the part that the records of a stream need, and the union of the schemas of a stream.

use std::collections::HashMap;

use super::{Argument, Message, Schema, Symbols};

/// An error: two schemas define the message of the same number in different ways.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "message {id} is {first:?} in one schema of the trace and {second:?}, or has other fields, in another one"
)]
pub struct Conflict {
    /// The message's number.
    pub id: u32,
    /// Its name in one schema.
    pub first: String,
    /// Its name in the other one.
    pub second: String,
}

impl Schema {
    /// The schema of the messages for whose positions `used` is true, with the definitions that they need. Their records can be read
    /// with either schema, because the numbers of messages and cells do not change.
    pub fn subset(&self, used: impl Fn(usize) -> bool) -> Self {
        let mut part = Self::default();
        let mut known = Known::default();
        for (position, message) in self.messages.iter().enumerate() {
            if used(position) {
                known.copy(self, message, &mut part);
            }
        }
        part
    }

    /// Adds the messages of `other` that this schema does not have. Returns whether there were any.
    pub fn extend(&mut self, other: &Self) -> Result<bool, Conflict> {
        let mut new = Vec::new();
        for message in &other.messages {
            match self.message(message.id) {
                Some(own) if self.same(own, other, message) => {}
                Some(own) => {
                    return Err(Conflict {
                        id: message.id,
                        first: own.name.clone(),
                        second: message.name.clone(),
                    });
                }
                None => new.push(message),
            }
        }
        if new.is_empty() {
            return Ok(false);
        }
        let mut known = Known::of(self);
        for message in new {
            known.copy(other, message, self);
        }
        self.messages.sort_by_key(|it| it.id);
        Ok(true)
    }

    /// Whether both messages have the same definition.
    fn same(&self, own: &Message, other: &Self, message: &Message) -> bool {
        let arguments = own.arguments.iter().zip(&message.arguments);
        let same = |(&own, &its): (&u32, &u32)| match (self.argument(own), other.argument(its)) {
            (Some(a), Some(b)) => {
                self.symbols_of(a) == other.symbols_of(b)
                    && *a
                        == Argument {
                            symbols: a.symbols,
                            ..b.clone()
                        }
            }
            _ => false,
        };
        own.name == message.name
            && own.number == message.number
            && own.arguments.len() == message.arguments.len()
            && arguments.into_iter().all(same)
    }
}

/// The positions of a schema's definitions, by their content, so that equal definitions become one.
#[derive(Default)]
struct Known {
    arguments: HashMap<Argument, u32>,
    symbols: HashMap<Symbols, u32>,
}

impl Known {
    fn of(schema: &Schema) -> Self {
        Self {
            arguments: (0..)
                .zip(&schema.arguments)
                .map(|(at, it)| (it.clone(), at))
                .collect(),
            symbols: (0..)
                .zip(&schema.symbols)
                .map(|(at, it)| (it.clone(), at))
                .collect(),
        }
    }

    /// Appends a message of `from` to `to`, with the arguments and symbols that `to` lacks.
    fn copy(&mut self, from: &Schema, message: &Message, to: &mut Schema) {
        let mut arguments = Vec::with_capacity(message.arguments.len());
        for argument in message.arguments.iter().filter_map(|&at| from.argument(at)) {
            let symbols = from.symbols_of(argument).map(|set| {
                *self.symbols.entry(set.clone()).or_insert_with(|| {
                    to.symbols.push(set.clone());
                    to.symbols.len() as u32 - 1
                })
            });
            let argument = Argument {
                symbols,
                ..argument.clone()
            };
            arguments.push(
                *self
                    .arguments
                    .entry(argument)
                    .or_insert_with_key(|argument| {
                        to.arguments.push(argument.clone());
                        to.arguments.len() as u32 - 1
                    }),
            );
        }
        to.messages.push(Message {
            arguments,
            ..message.clone()
        });
    }
}
