//! Builds schemas.

use std::collections::HashMap;

use amino_schema::trace::{Argument, Message, Schema, Symbols, Type};

/// A schema that grows. Equal arguments are stored once.
#[derive(Debug, Default)]
pub struct Definitions {
    schema: Schema,
    arguments: HashMap<Argument, u32>,
    symbols: HashMap<String, u32>,
    cells: HashMap<String, u32>,
}

impl Definitions {
    /// A schema of one message whose arguments are unsigned numbers.
    pub fn counters(message: &str, names: &[&str]) -> Schema {
        let mut definitions = Self::default();
        let arguments = names
            .iter()
            .map(|name| definitions.argument(name, "number", "", (Type::Unsigned, 8), name))
            .collect();
        definitions.message(1, message, None, arguments);
        definitions.schema()
    }

    /// Adds an argument, and returns its index. `cell` names the memory cell that elision compares with.
    pub fn argument(
        &mut self,
        name: &str,
        role: &str,
        unit: &str,
        (kind, size): (Type, u8),
        cell: &str,
    ) -> u32 {
        self.named_values(name, role, unit, (kind, size), cell, None)
    }

    /// Adds an argument whose values have names, and returns its index.
    pub fn named_values(
        &mut self,
        name: &str,
        role: &str,
        unit: &str,
        (kind, size): (Type, u8),
        cell: &str,
        symbols: Option<u32>,
    ) -> u32 {
        let cells = self.cells.len() as u32;
        let cell = *self.cells.entry(cell.to_owned()).or_insert(cells);
        let argument = Argument {
            name: name.to_owned(),
            kind,
            size,
            unit: unit.to_owned(),
            role: role.to_owned(),
            symbols,
            cell,
            hidden: None,
        };
        let index = self.schema.arguments.len() as u32;
        *self.arguments.entry(argument.clone()).or_insert_with(|| {
            self.schema.arguments.push(argument);
            index
        })
    }

    /// Adds a set of names of values, and returns its index.
    pub fn symbol_set(
        &mut self,
        name: &str,
        bits: bool,
        field: u64,
        values: impl Iterator<Item = (u64, String)>,
    ) -> u32 {
        let key = format!("{name} {bits}");
        let index = self.schema.symbols.len() as u32;
        *self.symbols.entry(key).or_insert_with(|| {
            self.schema.symbols.push(Symbols {
                name: name.to_owned(),
                bits,
                field,
                values: values.collect(),
            });
            index
        })
    }

    /// Appends a message, and returns its position in the schema, as [`super::Writer::put`] takes it. Ids must ascend.
    pub fn message(
        &mut self,
        id: u32,
        name: &str,
        number: Option<u32>,
        arguments: Vec<u32>,
    ) -> usize {
        self.schema.messages.push(Message {
            id,
            name: name.to_owned(),
            number,
            arguments,
        });
        self.schema.messages.len() - 1
    }

    /// The schema.
    pub fn schema(self) -> Schema {
        self.schema
    }
}
