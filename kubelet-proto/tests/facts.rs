//! The committed `.proto` files say what the wire is known to be: every service, call, message, field number, type and
//! enum value, and nothing else.
//!
//! A file of facts has one fact a line, in columns divided by tabs:
//!
//! - `package NAME`
//! - `rpc SERVICE CALL REQUEST RESPONSE`, with `stream ` before a side that is a stream
//! - `enum NAME VALUE NUMBER`
//! - `message NAME`, for a message without fields
//! - `field MESSAGE NAME NUMBER TYPE [repeated | optional | oneof:NAME] [deprecated]`
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;
use std::path::Path;

use protox::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use protox::prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, MethodDescriptorProto,
};

#[test]
fn cri_v1() {
    compare("proto/cri", "runtime/v1/api.proto", "tests/facts/cri-v1.tsv");
}

fn compare(include: &str, proto: &str, facts: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for line in std::fs::read_to_string(root.join(facts)).unwrap().lines() {
        assert!(known.insert(line.trim_end().to_owned()), "{facts} says twice: {line}");
    }
    let descriptors = protox::compile([proto], [root.join(include)]).unwrap();
    let file = descriptors.file.iter().find(|file| file.name() == proto).unwrap();
    assert_eq!(file.syntax(), "proto3");
    let said = say(file);
    let missing: Vec<_> = known.difference(&said).collect();
    let invented: Vec<_> = said.difference(&known).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "{proto} lacks {missing:#?} and says besides {invented:#?}"
    );
}

/// What a file says, in lines of facts.
fn say(file: &FileDescriptorProto) -> BTreeSet<String> {
    let package = format!(".{}.", file.package());
    let mut said = Said {
        package,
        facts: BTreeSet::new(),
    };
    said.fact(["package", file.package()]);
    for service in &file.service {
        for call in &service.method {
            said.call(service.name(), call);
        }
    }
    for message in &file.message_type {
        said.message(message.name(), message);
    }
    for values in &file.enum_type {
        said.values(values.name(), values);
    }
    said.facts
}

struct Said {
    /// The package, between dots.
    package: String,
    facts: BTreeSet<String>,
}

impl Said {
    fn fact<'a>(&mut self, columns: impl IntoIterator<Item = &'a str>) {
        let columns: Vec<_> = columns.into_iter().collect();
        self.facts.insert(columns.join("\t").trim_end().to_owned());
    }

    fn call(&mut self, service: &str, call: &MethodDescriptorProto) {
        let side = |stream: bool, name: &str| format!("{}{}", if stream { "stream " } else { "" }, self.name(name));
        let request = side(call.client_streaming(), call.input_type());
        let response = side(call.server_streaming(), call.output_type());
        self.fact(["rpc", service, call.name(), &request, &response]);
    }

    fn message(&mut self, name: &str, message: &DescriptorProto) {
        if message.field.is_empty() {
            self.fact(["message", name]);
        }
        for field in &message.field {
            self.field(name, message, field);
        }
        for nested in &message.nested_type {
            if !nested.options.as_ref().is_some_and(|options| options.map_entry()) {
                self.message(&format!("{name}.{}", nested.name()), nested);
            }
        }
        for values in &message.enum_type {
            self.values(&format!("{name}.{}", values.name()), values);
        }
    }

    fn field(&mut self, name: &str, message: &DescriptorProto, field: &FieldDescriptorProto) {
        let entry = message.nested_type.iter().find(|nested| {
            nested.options.as_ref().is_some_and(|options| options.map_entry())
                && field.type_name().ends_with(&format!("{name}.{}", nested.name()))
        });
        let (kind, label) = match entry {
            Some(entry) => {
                let [key, value] = [0, 1].map(|at| self.kind(name, &entry.field[at]));
                (format!("map<{key},{value}>"), String::new())
            }
            None => (self.kind(name, field), label(message, field)),
        };
        let deprecated = field.options.as_ref().is_some_and(|options| options.deprecated());
        let flag = if deprecated { "deprecated" } else { "" };
        let number = field.number().to_string();
        self.fact(["field", name, field.name(), &number, &kind, &label, flag]);
    }

    fn values(&mut self, name: &str, values: &EnumDescriptorProto) {
        for value in &values.value {
            self.fact(["enum", name, value.name(), &value.number().to_string()]);
        }
    }

    /// A type as it is written within a message.
    fn kind(&self, message: &str, field: &FieldDescriptorProto) -> String {
        match field.r#type() {
            Type::Message | Type::Enum => {
                let name = self.name(field.type_name());
                let nested = name.strip_prefix(message).and_then(|rest| rest.strip_prefix('.'));
                nested.unwrap_or(name).to_owned()
            }
            scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
        }
    }

    /// A full name without this file's package.
    fn name<'a>(&self, full: &'a str) -> &'a str {
        full.strip_prefix(&self.package)
            .unwrap_or_else(|| full.trim_start_matches('.'))
    }
}

fn label(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    match field.oneof_index {
        _ if field.proto3_optional() => "optional".to_owned(),
        Some(index) => format!("oneof:{}", message.oneof_decl[index as usize].name()),
        None if field.label() == Label::Repeated => "repeated".to_owned(),
        None => String::new(),
    }
}
