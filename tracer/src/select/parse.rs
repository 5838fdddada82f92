//! The parser of filters. The grammar is in the first lines of `mod.rs`.

use std::fmt;

use goanna_sys::Errno;
use goanna_syscalls::Operation;

use super::glob::Glob;
use super::operation::{self, CallSet, OperationSet};
use super::predicate::{Number, Part, Predicate, Text};

/// The longest text, in bytes.
const MAX_LENGTH: usize = 64 * 1024;
/// The deepest nesting of parentheses and negations.
const MAX_DEPTH: usize = 100;

/// An expression whose tests are predicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// The predicate holds.
    Is(Predicate),
    /// The expression does not hold.
    Not(Box<Expression>),
    /// All of them hold.
    All(Vec<Expression>),
    /// At least one of them holds.
    Any(Vec<Expression>),
}

impl Expression {
    /// The highest rank of its predicates.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Is(predicate) => predicate.rank(),
            Self::Not(inner) => inner.rank(),
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::rank).max().unwrap_or(0),
        }
    }
}

/// The result of [`parse`].
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The expression; no deeper than `MAX_DEPTH`.
    pub expression: Expression,
}

impl Parsed {
    /// The expression that holds for everything.
    pub fn everything() -> Self {
        Self {
            expression: Expression::All(Vec::new()),
        }
    }
}

/// An error in the text of a filter. Its display shows the text and a line of carets below the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// A description of the error.
    pub message: String,
    /// The column where it is, in characters from 1.
    pub column: usize,
    /// How many characters are wrong; at least 1.
    pub width: usize,
    /// The line of the text that it is in.
    pub line: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indent = " ".repeat(self.column - 1);
        let carets = "^".repeat(self.width);
        let Self {
            message,
            column,
            line,
            ..
        } = self;
        write!(
            f,
            "column {column}: {message}\n  {line}\n  {indent}{carets}"
        )
    }
}

impl std::error::Error for FilterError {}

/// Parses a filter; a text of white space holds for everything.
pub fn parse(text: &str) -> Result<Parsed, FilterError> {
    let mut parser = Parser {
        text,
        at: 0,
        token: Token::End,
        start: 0,
        depth: 0,
    };
    if text.len() > MAX_LENGTH {
        return Err(parser.error_at(0, 1, format!("longer than {MAX_LENGTH} bytes")));
    }
    parser.advance()?;
    if parser.token == Token::End {
        return Ok(Parsed::everything());
    }
    let expression = parser.any()?;
    if parser.token != Token::End {
        return Err(parser.unexpected("'and', 'or' or the end"));
    }
    Ok(Parsed { expression })
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    End,
    /// A name or number.
    Word(String),
    /// Between quotes.
    Quoted(String),
    /// An operator or punctuation.
    Sign(&'static str),
}

/// Operators and punctuation; a longer one stands before its prefixes.
const SIGNS: [&str; 18] = [
    "&&", "||", "==", "!=", "!~", "<=", ">=", "=", "<", ">", "~", "!", "(", ")", "{", "}", ",", "&",
];

struct Parser<'a> {
    text: &'a str,
    /// Behind the current token.
    at: usize,
    token: Token,
    /// Where the current token begins.
    start: usize,
    depth: usize,
}

impl Parser<'_> {
    fn any(&mut self) -> Result<Expression, FilterError> {
        self.chain("or", "||", Expression::Any, |parser| {
            parser.chain("and", "&&", Expression::All, Self::unary)
        })
    }

    /// Operands between operators of one kind.
    fn chain(
        &mut self,
        word: &str,
        sign: &str,
        make: fn(Vec<Expression>) -> Expression,
        operand: impl Fn(&mut Self) -> Result<Expression, FilterError>,
    ) -> Result<Expression, FilterError> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while self.is_word(word) || self.is_sign(sign) {
            self.advance()?;
            rest.push(operand(self)?);
        }
        if rest.is_empty() {
            return Ok(first);
        }
        rest.insert(0, first);
        Ok(make(rest))
    }

    fn unary(&mut self) -> Result<Expression, FilterError> {
        let is_negation = self.is_word("not") || self.is_sign("!");
        if !is_negation && !self.is_sign("(") {
            return self.predicate();
        }
        if self.depth == MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} deep");
            return Err(self.error_here(message));
        }
        self.depth += 1;
        self.advance()?;
        let expression = if is_negation {
            Expression::Not(Box::new(self.unary()?))
        } else {
            let inner = self.any()?;
            self.expect(")")?;
            inner
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn predicate(&mut self) -> Result<Expression, FilterError> {
        let Token::Word(word) = &self.token else {
            return Err(self.unexpected("a field, as uid, name or op"));
        };
        let Some(field) = Field::named(word) else {
            let near = nearest(word, Field::ALL.iter().map(|(name, _)| *name));
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            let names: Vec<_> = Field::ALL.iter().map(|(name, _)| *name).collect();
            let message = format!("unknown field {word}{hint} (fields: {})", names.join(", "));
            return Err(self.error_here(message));
        };
        self.advance()?;
        let mut is_negated = self.is_word("not");
        if is_negated {
            self.advance()?;
        }
        if self.is_word("in") {
            self.advance()?;
            let set = self.set(field)?;
            return Ok(negate_if(is_negated, set));
        }
        let operators = field.operators();
        let operator = match &self.token {
            Token::Sign(sign) if !is_negated && operators.contains(sign) => *sign,
            Token::Sign("=") => {
                return Err(self.error_here("'=' is not a comparison; write '=='".into()));
            }
            _ if is_negated => return Err(self.unexpected("'in'")),
            _ => {
                let all = operators.join("', '");
                return Err(self.unexpected(&format!("'in' or one of '{all}'")));
            }
        };
        self.advance()?;
        is_negated = operator.starts_with('!');
        let start = self.start;
        let value = self.value(field)?;
        let test = match (field, operator.trim_start_matches('!')) {
            (Field::Text(part), "~") => self.like(part, start, &value)?,
            (_, "==" | "=") => self.one_of(field, &[(start, value)])?,
            (Field::Number(number), sign) => {
                let value = self.number(number, start, &value)?;
                let range = match sign {
                    "<" => value.checked_sub(1).map(|high| (i64::MIN, high)),
                    "<=" => Some((i64::MIN, value)),
                    ">" => value.checked_add(1).map(|low| (low, i64::MAX)),
                    _ => Some((value, i64::MAX)),
                };
                Expression::Is(Predicate::Number(number, range.into_iter().collect()))
            }
            _ => return Err(self.error_at(start, 1, format!("{operator} does not apply here"))),
        };
        Ok(negate_if(is_negated, test))
    }

    /// `{ value, ... }`
    fn set(&mut self, field: Field) -> Result<Expression, FilterError> {
        let close = if self.is_sign("{") {
            "}"
        } else if self.is_sign("(") {
            ")"
        } else {
            return Err(self.unexpected("'{' and a list of values"));
        };
        self.advance()?;
        let mut values = Vec::new();
        loop {
            let start = self.start;
            values.push((start, self.value(field)?));
            if !self.is_sign(",") {
                break;
            }
            self.advance()?;
        }
        self.expect(close)?;
        self.one_of(field, &values)
    }

    /// A value's text.
    fn value(&mut self, field: Field) -> Result<String, FilterError> {
        match std::mem::replace(&mut self.token, Token::End) {
            Token::Word(value) | Token::Quoted(value) => {
                self.advance()?;
                Ok(value)
            }
            other => {
                self.token = other;
                let wanted = match field {
                    Field::Number(_) => "a number",
                    Field::Text(_) => "a string",
                    Field::Call => "the name of a call",
                    Field::Operation => "an operation",
                };
                Err(self.unexpected(wanted))
            }
        }
    }

    fn one_of(&self, field: Field, values: &[(usize, String)]) -> Result<Expression, FilterError> {
        match field {
            Field::Number(number) => {
                let mut ranges = Vec::new();
                for (start, value) in values {
                    let value = self.number(number, *start, value)?;
                    ranges.push((value, value));
                }
                ranges.sort_unstable();
                ranges.dedup();
                Ok(Expression::Is(Predicate::Number(number, ranges.into())))
            }
            Field::Text(part) => {
                let mut list: Vec<Box<[u8]>> = values
                    .iter()
                    .map(|(_, value)| value.as_bytes().into())
                    .collect();
                list.sort_unstable();
                list.dedup();
                Ok(text(part, Text::OneOf(list.into())))
            }
            Field::Call => {
                let mut set = CallSet::default();
                for (start, value) in values {
                    set.insert(self.call(*start, value)?);
                }
                Ok(Expression::Is(Predicate::Call(set)))
            }
            Field::Operation => self.operations(values),
        }
    }

    fn operations(&self, values: &[(usize, String)]) -> Result<Expression, FilterError> {
        let mut set = OperationSet::default();
        for (start, value) in values {
            let operation = Operation::by_name(value).ok_or_else(|| {
                let near = nearest(value, operation::names());
                let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
                let all: Vec<_> = operation::names().collect();
                let all = all.join(", ");
                let message = format!("unknown operation {value}{hint} (operations: {all})");
                self.error_at(*start, value.chars().count(), message)
            })?;
            set.insert(operation);
        }
        Ok(Expression::Is(Predicate::Operation(set)))
    }

    fn call(&self, start: usize, value: &str) -> Result<u32, FilterError> {
        let signature = goanna_syscalls::by_name(value);
        signature.map(|one| one.nr).ok_or_else(|| {
            let near = nearest(value, operation::call_names());
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            let message = format!("unknown system call {value}{hint}");
            self.error_at(start, value.chars().count(), message)
        })
    }

    fn like(&self, part: TextField, start: usize, value: &str) -> Result<Expression, FilterError> {
        let compiled = match part {
            TextField::File(Part::Path) => Glob::for_paths(value.as_bytes()),
            _ => Glob::new(value.as_bytes()),
        };
        let glob = compiled.map_err(|(_, what)| {
            self.error_at(
                start,
                value.chars().count().max(1),
                format!("the pattern has {what}"),
            )
        })?;
        Ok(text(part, Text::Like(glob)))
    }

    fn number(&self, number: Number, start: usize, value: &str) -> Result<i64, FilterError> {
        let is_errno = number == Number::Ret && value.starts_with('E');
        let parsed = if is_errno {
            errno(value).map(|errno| -i64::from(errno))
        } else {
            integer(value)
        };
        parsed.ok_or_else(|| {
            let hint = match nearest(value, errno_names().iter().map(String::as_str)) {
                Some(near) if is_errno => format!("; did you mean {near}?"),
                _ => String::new(),
            };
            let message = format!("{value} is not a number{hint}");
            self.error_at(start, value.chars().count().max(1), message)
        })
    }

    fn expect(&mut self, sign: &str) -> Result<(), FilterError> {
        if self.is_sign(sign) {
            return self.advance();
        }
        Err(self.unexpected(&format!("'{sign}'")))
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.token, Token::Sign(own) if own == sign)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.token, Token::Word(own) if own == word)
    }

    /// Reads the next token.
    fn advance(&mut self) -> Result<(), FilterError> {
        let rest = &self.text[self.at..];
        let skipped = rest.len() - rest.trim_start().len();
        self.start = self.at + skipped;
        let rest = &self.text[self.start..];
        let (token, length) = match rest.chars().next() {
            None => (Token::End, 0),
            Some('"' | '\'') => self.quoted(rest)?,
            Some(first) if is_word(first) || first == '-' => {
                let end = rest.char_indices().skip(1).find(|&(_, c)| !is_word(c));
                let length = end.map_or(rest.len(), |(at, _)| at);
                (Token::Word(rest[..length].into()), length)
            }
            Some(other) => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(&"&") => {
                    return Err(self.error_at(
                        self.start,
                        1,
                        "'&' is not an operator; write '&&'".into(),
                    ));
                }
                Some(sign) => (Token::Sign(sign), sign.len()),
                None => {
                    let message = format!("unexpected {other:?}");
                    return Err(self.error_at(self.start, 1, message));
                }
            },
        };
        self.token = token;
        self.at = self.start + length;
        Ok(())
    }

    /// A string between quotes. A backslash before the quote makes the quote part of the string; other backslashes are kept, for patterns.
    fn quoted(&self, rest: &str) -> Result<(Token, usize), FilterError> {
        let mut chars = rest.char_indices();
        let quote = chars.next().map(|(_, quote)| quote);
        let mut value = String::new();
        while let Some((at, c)) = chars.next() {
            if Some(c) == quote {
                return Ok((Token::Quoted(value), at + c.len_utf8()));
            }
            if c != '\\' {
                value.push(c);
                continue;
            }
            match chars.next() {
                Some((_, next)) if Some(next) == quote => value.push(next),
                Some((_, next)) => value.extend(['\\', next]),
                None => break,
            }
        }
        Err(self.error_at(self.start, 1, "a string without a closing quote".into()))
    }

    /// The error that the current token is not the wanted one.
    fn unexpected(&self, wanted: &str) -> FilterError {
        let found = match &self.token {
            Token::End => "the end".into(),
            Token::Word(word) => word.clone(),
            Token::Quoted(_) => "a string".into(),
            Token::Sign(sign) => format!("'{sign}'"),
        };
        self.error_here(format!("expected {wanted}, found {found}"))
    }

    /// An error at the current token.
    fn error_here(&self, message: String) -> FilterError {
        let token = self.text.get(self.start..self.at).unwrap_or_default();
        self.error_at(self.start, token.chars().count(), message)
    }

    fn error_at(&self, start: usize, width: usize, message: String) -> FilterError {
        let before = self.text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = self.text.get(line_start..).unwrap_or_default();
        let line: String = line
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(1000)
            .collect();
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        let free = (line.chars().count() + 1).saturating_sub(column);
        FilterError {
            message,
            column,
            width: width.min(free).max(1),
            // A tab would move the caret.
            line: line.replace(|c: char| c.is_control(), " "),
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+' | '/' | '*' | '?')
}

/// A field of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Number(Number),
    Text(TextField),
    Call,
    Operation,
}

/// A field whose values are strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextField {
    Comm,
    File(Part),
}

impl Field {
    const ALL: [(&'static str, Self); 13] = [
        ("uid", Self::Number(Number::Uid)),
        ("gid", Self::Number(Number::Gid)),
        ("pid", Self::Number(Number::Pid)),
        ("tid", Self::Number(Number::Tid)),
        ("sid", Self::Number(Number::Sid)),
        ("comm", Self::Text(TextField::Comm)),
        ("name", Self::Text(TextField::File(Part::Name))),
        ("ext", Self::Text(TextField::File(Part::Extension))),
        ("path", Self::Text(TextField::File(Part::Path))),
        ("op", Self::Operation),
        ("call", Self::Call),
        ("ret", Self::Number(Number::Ret)),
        ("size", Self::Number(Number::Size)),
    ];

    fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(own, _)| *own == name);
        found.map(|(_, field)| *field)
    }

    fn operators(self) -> &'static [&'static str] {
        match self {
            Self::Number(_) => &["==", "!=", "<", "<=", ">", ">="],
            Self::Text(_) => &["==", "!=", "~", "!~"],
            Self::Call | Self::Operation => &["==", "!="],
        }
    }
}

fn text(part: TextField, text: Text) -> Expression {
    Expression::Is(match part {
        TextField::Comm => Predicate::Comm(text),
        TextField::File(part) => Predicate::File(part, text),
    })
}

fn negate_if(is_negated: bool, expression: Expression) -> Expression {
    if is_negated {
        Expression::Not(Box::new(expression))
    } else {
        expression
    }
}

/// A decimal, hexadecimal (0x) or octal (0o) number, with K, M or G of 1024 behind it.
fn integer(text: &str) -> Option<i64> {
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(rest), _) => (rest, 16),
        (_, Some(rest)) => (rest, 8),
        _ => (text, 10),
    };
    let (digits, shift) = match digits.chars().last() {
        Some('K') => (digits.get(..digits.len() - 1)?, 10),
        Some('M') => (digits.get(..digits.len() - 1)?, 20),
        Some('G') => (digits.get(..digits.len() - 1)?, 30),
        _ => (digits, 0),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let value = i64::from_str_radix(digits, radix).ok()?;
    let value = value.checked_mul(1 << shift)?;
    Some(if is_negative { -value } else { value })
}

/// Names of all errors, by number from 1.
fn errno_names() -> Vec<String> {
    (1..=133)
        .map(|errno| format!("{:?}", Errno::from_raw(errno)))
        .collect()
}

fn errno(name: &str) -> Option<i32> {
    if name == "EWOULDBLOCK" {
        return Some(Errno::EAGAIN as i32);
    }
    let at = errno_names().iter().position(|own| own == name)?;
    i32::try_from(at + 1).ok()
}

/// The candidate that differs in the fewest letters, if these are few.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 2).clamp(1, 3);
    let near = candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .min()?;
    (near.0 <= limit).then_some(near.1)
}

/// The number of letters to insert, delete or replace, or of neighbours to exchange, so that `a` becomes `b`.
fn distance(a: &str, b: &str) -> usize {
    // No name here is near to a longer word.
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (row, &of_a) in a.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, &of_b) in b.iter().enumerate() {
            let replaced = last[column] + usize::from(of_a != of_b);
            let mut best = replaced.min(last[column + 1] + 1).min(next[column] + 1);
            if row > 0 && column > 0 && of_a == b[column - 1] && a[row - 1] == of_b {
                best = best.min(before[column - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut last, next);
    }
    last[b.len()]
}
