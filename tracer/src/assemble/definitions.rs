//! Builds schemas.

use std::collections::HashMap;

use amino_schema::trace::{Argument, Message, Schema, Symbols, Type};

/// A schema that grows. Equal arguments are stored once.
#[derive(Debug, Default)]
pub struct Definitions {
    schema: Schema,
    /// The index of each cell, by its name.
    cells: HashMap<String, u32>,
    /// The arguments that use each cell. There are few.
    users: Vec<Vec<u32>>,
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
        // Each start of a tracer comes here thousands of times: do not allocate for a known cell.
        let cell = match self.cells.get(cell) {
            Some(cell) => *cell,
            None => {
                let new = self.users.len() as u32;
                self.cells.insert(cell.to_owned(), new);
                self.users.push(Vec::new());
                new
            }
        };
        let arguments = &self.schema.arguments;
        let is_equal = |index: &&u32| {
            arguments.get(**index as usize).is_some_and(|it| {
                (it.kind, it.size, it.symbols) == (kind, size, symbols)
                    && it.name == name
                    && it.role == role
                    && it.unit == unit
            })
        };
        let users = self.users.get(cell as usize);
        if let Some(known) = users.and_then(|users| users.iter().find(is_equal)) {
            return *known;
        }
        let index = self.schema.arguments.len() as u32;
        self.schema.arguments.push(Argument {
            name: name.to_owned(),
            kind,
            size,
            unit: unit.to_owned(),
            role: role.to_owned(),
            symbols,
            cell,
            hidden: None,
        });
        if let Some(users) = self.users.get_mut(cell as usize) {
            users.push(index);
        }
        index
    }

    /// Adds a set of names of values, and returns its index.
    pub fn symbol_set(
        &mut self,
        name: &str,
        bits: bool,
        field: u64,
        values: impl Iterator<Item = (u64, String)>,
    ) -> u32 {
        let sets = &mut self.schema.symbols;
        let is_equal = |set: &Symbols| set.bits == bits && set.name == name;
        if let Some(known) = sets.iter().position(is_equal) {
            return known as u32;
        }
        sets.push(Symbols {
            name: name.to_owned(),
            bits,
            field,
            values: values.collect(),
        });
        sets.len() as u32 - 1
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
