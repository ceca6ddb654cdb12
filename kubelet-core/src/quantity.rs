//! Exact Kubernetes quantities.

mod format;
mod parse;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

pub use parse::ParseQuantityError;

/// Nano units in one unit; nothing finer exists.
const NANOS: i128 = 1_000_000_000;
/// Nano units in one thousandth.
const NANOS_PER_MILLI: i128 = 1_000_000;

/// How a [`Quantity`] was written, which decides how it is printed and nothing else.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum QuantityFormat {
    /// A decimal suffix or none: `100m`, `5`, `2G`.
    DecimalSi,
    /// An exponent: `5e3`.
    DecimalExponent,
    /// A power of 1024: `64Mi`.
    BinarySi,
}

/// An amount of a resource, exact to a billionth.
///
/// Comparison and hashing look at the amount alone, so `1`, `1000m` and `1e0` are equal. The text a quantity was read
/// from is kept and printed again where upstream keeps it; arithmetic drops it.
///
/// Amounts up to about 1.7 × 10^29 are represented. What is larger is refused when read, because an exponent
/// of ten digits would otherwise be written out.
///
/// Source: Kubernetes 1.36, `apimachinery/pkg/api/resource`. One difference: a decimal amount above 999 E keeps its
/// suffix (`1000E`), where upstream prints `1`.
#[derive(Clone)]
pub struct Quantity {
    nanos: i128,
    format: QuantityFormat,
    text: Option<Box<str>>,
}

impl Quantity {
    /// Nothing, in decimal form.
    pub const ZERO: Self = Self::of(0, QuantityFormat::DecimalSi);

    const fn of(nanos: i128, format: QuantityFormat) -> Self {
        Self {
            nanos,
            format,
            text: None,
        }
    }

    /// A whole number of units.
    #[must_use]
    pub fn from_value(value: i64, format: QuantityFormat) -> Self {
        Self::of(i128::from(value) * NANOS, format)
    }

    /// A whole number of thousandths.
    #[must_use]
    pub fn from_milli(milli: i64, format: QuantityFormat) -> Self {
        Self::of(i128::from(milli) * NANOS_PER_MILLI, format)
    }

    /// The form this amount is printed in.
    #[must_use]
    pub fn format(&self) -> QuantityFormat {
        self.format
    }

    /// Whole units, rounded away from zero and held at the ends of `i64`.
    #[must_use]
    pub fn value(&self) -> i64 {
        saturate(divide_away(self.nanos, NANOS))
    }

    /// Thousandths, rounded away from zero and held at the ends of `i64`.
    #[must_use]
    pub fn milli_value(&self) -> i64 {
        saturate(divide_away(self.nanos, NANOS_PER_MILLI))
    }

    /// Whether the amount is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Whether the amount is below zero.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// Whether the amount is a whole number of units.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.nanos % NANOS == 0
    }

    /// Whether the amount is `unit` taken a whole number of times; false for a `unit` of zero.
    #[must_use]
    pub fn is_multiple_of(&self, unit: &Self) -> bool {
        self.nanos.checked_rem(unit.nanos) == Some(0)
    }

    /// The sum, or `None` where it cannot be represented.
    ///
    /// It is printed in the form of the left side, or of the right one if the left is zero.
    #[must_use]
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        let nanos = self.nanos.checked_add(other.nanos)?;
        Some(Self::of(nanos, self.format_with(other)))
    }

    /// The difference, or `None` where it cannot be represented. Its form follows [`Self::checked_add`].
    #[must_use]
    pub fn checked_sub(&self, other: &Self) -> Option<Self> {
        let nanos = self.nanos.checked_sub(other.nanos)?;
        Some(Self::of(nanos, self.format_with(other)))
    }

    /// The sum, held at the largest amount there is.
    #[must_use]
    pub fn saturating_add(&self, other: &Self) -> Self {
        let nanos = self.nanos.saturating_add(other.nanos);
        Self::of(nanos, self.format_with(other))
    }

    /// The difference, held at the smallest amount there is. It may be negative.
    #[must_use]
    pub fn saturating_sub(&self, other: &Self) -> Self {
        let nanos = self.nanos.saturating_sub(other.nanos);
        Self::of(nanos, self.format_with(other))
    }

    /// The amount rounded away from zero to whole thousandths, as every resource list of the API is.
    ///
    /// An amount that needs no rounding keeps its text.
    #[must_use]
    pub fn round_up_to_milli(&self) -> Self {
        if self.nanos % NANOS_PER_MILLI == 0 {
            return self.clone();
        }
        let milli = divide_away(self.nanos, NANOS_PER_MILLI);
        Self::of(milli.saturating_mul(NANOS_PER_MILLI), self.format)
    }

    /// The canonical text, whatever the amount was read from.
    #[must_use]
    pub fn canonical(&self) -> String {
        format::canonical(self.nanos, self.format)
    }

    /// How many times `whole` this amount is, about.
    #[allow(clippy::cast_precision_loss, reason = "only which of two shares is larger matters")]
    pub(crate) fn share_of(&self, whole: &Self) -> f64 {
        self.nanos as f64 / whole.nanos as f64
    }

    fn format_with(&self, other: &Self) -> QuantityFormat {
        if self.is_zero() { other.format } else { self.format }
    }
}

/// Zero, in decimal form.
impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.pad(text),
            None => f.pad(&self.canonical()),
        }
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quantity({self})")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Reads the API's text. Blanks around it are ignored.
impl TryFrom<&ApiQuantity> for Quantity {
    type Error = ParseQuantityError;

    fn try_from(quantity: &ApiQuantity) -> Result<Self, Self::Error> {
        quantity.0.trim().parse()
    }
}

impl From<&Quantity> for ApiQuantity {
    fn from(quantity: &Quantity) -> Self {
        Self(quantity.to_string())
    }
}

impl From<Quantity> for ApiQuantity {
    fn from(quantity: Quantity) -> Self {
        Self::from(&quantity)
    }
}

fn divide_away(dividend: i128, divisor: i128) -> i128 {
    let quotient = dividend / divisor;
    if dividend % divisor == 0 {
        quotient
    } else {
        quotient + dividend.signum()
    }
}

fn saturate(value: i128) -> i64 {
    let held = value.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(held).unwrap_or(i64::MAX)
}
